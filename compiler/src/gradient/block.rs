//! One block of the transformer, forwards with what the way back needs, and back.

use faer::Accum;
use htc_formats::model::{Activation, Role, Site, Slot};
use htc_kernels::Pool;
use htc_kernels::cpu::Attention;

use super::attention::{Attend, Qkv};
use super::elementwise::{
    activate, activate_back, norm_weight_back, rms_norm, rms_norm_back, rows_back,
};
use super::heads::{Heads, Rotation};
use super::number::{Matrix, Number, TASK_ROWS, linear, linear_back, room};

/// A norm's weight.
pub(super) type Weight<T> = Vec<T>;

/// A block with its weights.
#[derive(Clone, Debug)]
pub(super) struct Block<T> {
    /// Width of the residual stream.
    pub width: usize,
    /// Query heads, key and value heads, and numbers of a head.
    pub heads: usize,
    pub kv_heads: usize,
    pub head_size: usize,
    /// Of the norms.
    pub epsilon: f64,
    pub activation: Activation,
    /// Positions of a window of the text.
    pub context: usize,
    pub attention: Attention,
    pub rotation: Rotation<T>,
    /// By slot.
    pub slots: Vec<Matrix<T>>,
    pub biases: Vec<Option<Vec<T>>>,
    pub attention_norm: Weight<T>,
    pub query_norm: Option<Weight<T>>,
    pub key_norm: Option<Weight<T>>,
    pub post_attention_norm: Option<Weight<T>>,
    pub ffn_norm: Weight<T>,
    pub post_ffn_norm: Option<Weight<T>>,
}

/// What a forward pass leaves behind, `[n, ...]` where nothing else is said.
#[derive(Debug, Default)]
pub(super) struct Saved<T> {
    /// By [`Site`]: what the slots read.
    inputs: [Vec<T>; 4],
    /// By [`Slot`]: what the slots gave, with their biases.
    outputs: [Vec<T>; 7],
    /// The stream between attention and the feed-forward network.
    middle: Vec<T>,
    /// `1 / rms` of attention's norm, the network's, those behind O and down.
    inverses: [Vec<T>; 4],
    /// The same of queries, keys and values, `[windows, heads, context]`.
    of_heads: [Vec<T>; 3],
    /// Queries, keys and values as attention sees them, `[windows, heads, context, size]`.
    heads: [Vec<T>; 3],
    /// What attention gives in that shape, and the logarithms of its sums.
    attended: Vec<T>,
    sums: Vec<T>,
    /// The residual stream behind the block.
    pub out: Vec<T>,
}

impl<T> Saved<T> {
    /// What the slots of a site read.
    #[cfg(test)]
    pub fn input(&self, site: Site) -> &[T] {
        &self.inputs[site as usize]
    }
}

/// Memory of the way back, kept from one call to the next.
#[derive(Debug, Default)]
pub(super) struct Work<T> {
    slots: [Vec<T>; 7],
    /// With respect to the stream between attention and the network.
    middle: Vec<T>,
    /// With respect to what slots read.
    input: Vec<T>,
    attended: Vec<T>,
    heads: [Vec<T>; 3],
    /// Sums of the gradients with respect to the weights of the block's norms, by [`Norm`], where they are wanted:
    /// what comes back adds to them. One that the block has not stays empty.
    pub norms: Option<[Vec<f64>; 6]>,
    /// With respect to the residual stream in front of the block.
    pub stream: Vec<T>,
}

/// The norms of a block; the first four are of the width of the residual stream, and have their places in
/// [`Saved::inverses`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Norm {
    Attention,
    Ffn,
    BehindO,
    BehindDown,
    Query,
    Key,
}

impl Norm {
    /// All of them.
    pub const ALL: [Norm; 6] = [
        Norm::Attention,
        Norm::Ffn,
        Norm::BehindO,
        Norm::BehindDown,
        Norm::Query,
        Norm::Key,
    ];

    /// What it is called in a layer.
    pub fn role(self, layer: usize) -> Role {
        match self {
            Norm::Attention => Role::AttentionNorm { layer },
            Norm::Ffn => Role::FfnNorm { layer },
            Norm::BehindO => Role::PostAttentionNorm { layer },
            Norm::BehindDown => Role::PostFfnNorm { layer },
            Norm::Query => Role::QueryNorm { layer },
            Norm::Key => Role::KeyNorm { layer },
        }
    }
}

impl<T: Number> Block<T> {
    fn slot(&self, slot: Slot) -> &Matrix<T> {
        &self.slots[slot as usize]
    }

    /// How queries, keys and values are made heads.
    fn of_heads(&self) -> [(Slot, Heads<'_, T>); 3] {
        let heads = |count| Heads {
            count,
            size: self.head_size,
            context: self.context,
            norm: None,
            epsilon: self.epsilon,
            rotation: None,
        };
        let rotated = |count, norm| Heads {
            norm,
            rotation: Some(&self.rotation),
            ..heads(count)
        };
        [
            (Slot::Q, rotated(self.heads, self.query_norm.as_deref())),
            (Slot::K, rotated(self.kv_heads, self.key_norm.as_deref())),
            (Slot::V, heads(self.kv_heads)),
        ]
    }

    fn attend(&self) -> Attend<'_> {
        Attend {
            group: self.heads / self.kv_heads.max(1),
            size: self.head_size,
            context: self.context,
            attention: &self.attention,
        }
    }

    /// The residual stream `x [windows · context, width]` through the block; what it becomes is in
    /// [`Saved::out`].
    pub fn forward(&self, pool: &Pool, x: &[T], saved: &mut Saved<T>) {
        let n = x.len() / self.width.max(1);
        let inverse = &mut saved.inverses[Norm::Attention as usize];
        let normed = room(&mut saved.inputs[Site::Attention as usize], x.len());
        let inverse = room(inverse, n);
        rms_norm(pool, x, &self.attention_norm, self.epsilon, normed, inverse);
        for (index, (slot, heads)) in self.of_heads().iter().enumerate() {
            self.project(pool, *slot, saved);
            let y = &saved.outputs[*slot as usize];
            let out = room(&mut saved.heads[index], y.len());
            let inverse = room(&mut saved.of_heads[index], n * heads.count);
            heads.split(pool, y, out, inverse);
        }
        let [q, k, v] = &saved.heads;
        let qkv = Qkv { q, k, v };
        let attended = room(&mut saved.attended, q.len());
        let sums = room(&mut saved.sums, n * self.heads);
        self.attend().forward(pool, qkv, attended, sums);
        let rows = room(&mut saved.inputs[Site::AttentionOutput as usize], q.len());
        let [(_, queries), ..] = self.of_heads();
        queries.merge(pool, attended, rows);
        let middle = room(&mut saved.middle, x.len());
        middle.copy_from_slice(x);
        self.branch(pool, Slot::O, saved);
        let normed = room(&mut saved.inputs[Site::Ffn as usize], x.len());
        let inverse = room(&mut saved.inverses[Norm::Ffn as usize], n);
        let middle = &saved.middle;
        rms_norm(pool, middle, &self.ffn_norm, self.epsilon, normed, inverse);
        self.project(pool, Slot::Gate, saved);
        self.project(pool, Slot::Up, saved);
        let [gate, up] = [Slot::Gate, Slot::Up].map(|slot| &saved.outputs[slot as usize]);
        let hidden = room(&mut saved.inputs[Site::FfnHidden as usize], up.len());
        activate(pool, self.activation, gate, up, hidden);
        let out = room(&mut saved.out, x.len());
        out.copy_from_slice(&saved.middle);
        self.branch(pool, Slot::Down, saved);
    }

    /// What a slot gives for what its site reads, with its bias.
    fn project(&self, pool: &Pool, slot: Slot, saved: &mut Saved<T>) {
        let (w, x) = (self.slot(slot), &saved.inputs[slot.site() as usize]);
        let n = x.len() / w.cols.max(1);
        let y = room(&mut saved.outputs[slot as usize], n * w.rows);
        linear(pool, w, x, y);
        if let Some(bias) = &self.biases[slot as usize] {
            pool.chunks_mut(y, TASK_ROWS * w.rows, |_, y| {
                for (y, &bias) in y.iter_mut().zip(bias.iter().cycle()) {
                    *y += bias;
                }
            });
        }
    }

    /// The norm behind a slot that writes to the residual stream, and which it is.
    fn behind(&self, slot: Slot) -> Option<(&Weight<T>, Norm)> {
        let norm = match slot {
            Slot::O => Norm::BehindO,
            _ => Norm::BehindDown,
        };
        self.norm(norm).map(|weight| (weight, norm))
    }

    /// The weight of a norm, where the block has it.
    pub fn norm(&self, norm: Norm) -> Option<&Weight<T>> {
        match norm {
            Norm::Attention => Some(&self.attention_norm),
            Norm::Ffn => Some(&self.ffn_norm),
            Norm::BehindO => self.post_attention_norm.as_ref(),
            Norm::BehindDown => self.post_ffn_norm.as_ref(),
            Norm::Query => self.query_norm.as_ref(),
            Norm::Key => self.key_norm.as_ref(),
        }
    }

    /// The same, to be changed.
    pub fn norm_mut(&mut self, norm: Norm) -> Option<&mut Weight<T>> {
        match norm {
            Norm::Attention => Some(&mut self.attention_norm),
            Norm::Ffn => Some(&mut self.ffn_norm),
            Norm::BehindO => self.post_attention_norm.as_mut(),
            Norm::BehindDown => self.post_ffn_norm.as_mut(),
            Norm::Query => self.query_norm.as_mut(),
            Norm::Key => self.key_norm.as_mut(),
        }
    }

    /// Sums of no gradient, for [`Work::norms`].
    pub fn no_norms(&self) -> [Vec<f64>; 6] {
        Norm::ALL.map(|norm| vec![0.0; self.norm(norm).map_or(0, Vec::len)])
    }

    /// Adds O or down, behind its norm, to the stream: the one in the middle, or the one behind the block.
    fn branch(&self, pool: &Pool, slot: Slot, saved: &mut Saved<T>) {
        self.project(pool, slot, saved);
        let y = &saved.outputs[slot as usize];
        let mut normed = Vec::new();
        let added = match self.behind(slot) {
            None => y,
            Some((weight, norm)) => {
                normed.resize(y.len(), T::default());
                let inverse = &mut saved.inverses[norm as usize];
                let inverse = room(inverse, y.len() / self.width.max(1));
                rms_norm(pool, y, weight, self.epsilon, &mut normed, inverse);
                &normed
            }
        };
        let stream = match slot {
            Slot::O => &mut saved.middle,
            _ => &mut saved.out,
        };
        add(pool, added, stream);
    }

    /// From the gradient `d_out` with respect to the residual stream behind the block to that in front of
    /// it, [`Work::stream`]. `x` and `saved` are those of the way there. `see` is given the gradient with
    /// respect to what each slot gives, `[n, rows]`.
    pub fn back(
        &self,
        pool: &Pool,
        [x, d_out]: [&[T]; 2],
        saved: &Saved<T>,
        work: &mut Work<T>,
        see: &mut dyn FnMut(Slot, &[T]),
    ) {
        let numbers = x.len();
        self.branch_back(pool, Slot::Down, d_out, saved, work);
        room(&mut work.middle, numbers).copy_from_slice(d_out);
        self.ffn_back(pool, saved, work);
        let d_middle = std::mem::take(&mut work.middle);
        self.branch_back(pool, Slot::O, &d_middle, saved, work);
        work.middle = d_middle;
        self.attention_back(pool, saved, work);
        let d_normed = room(&mut work.input, numbers);
        for (slot, accumulate) in [
            (Slot::Q, Accum::Replace),
            (Slot::K, Accum::Add),
            (Slot::V, Accum::Add),
        ] {
            let dy = &work.slots[slot as usize];
            linear_back(pool, self.slot(slot), dy, d_normed, accumulate);
        }
        let stream = room(&mut work.stream, numbers);
        stream.copy_from_slice(&work.middle);
        let (weight, inverse) = (
            &self.attention_norm,
            &saved.inverses[Norm::Attention as usize],
        );
        rms_norm_back(pool, x, weight, inverse, &work.input, stream);
        let of = [x, inverse, &work.input];
        add_weight(pool, Norm::Attention, of, &mut work.norms);
        for slot in Slot::ALL {
            see(slot, &work.slots[slot as usize]);
        }
    }

    /// Adds `Σ dy ∘ W x` over the positions for each row of a slot, of which [`Saved`] has what it gave.
    pub fn add_rows_back(
        &self,
        pool: &Pool,
        slot: Slot,
        saved: &Saved<T>,
        dy: &[T],
        sums: &mut [f64],
    ) {
        let bias = self.biases[slot as usize].as_deref();
        rows_back(pool, &saved.outputs[slot as usize], bias, dy, sums);
    }

    /// What comes back to O or down, through the norm behind it.
    fn branch_back(&self, pool: &Pool, slot: Slot, d: &[T], saved: &Saved<T>, work: &mut Work<T>) {
        let to = room(&mut work.slots[slot as usize], d.len());
        match self.behind(slot) {
            None => to.copy_from_slice(d),
            Some((weight, norm)) => {
                to.fill(T::default());
                let (y, inverse) = (
                    &saved.outputs[slot as usize],
                    &saved.inverses[norm as usize],
                );
                rms_norm_back(pool, y, weight, inverse, d, to);
                add_weight(pool, norm, [y, inverse, d], &mut work.norms);
            }
        }
    }

    /// From down to the stream in the middle, whose gradient is added to.
    fn ffn_back(&self, pool: &Pool, saved: &Saved<T>, work: &mut Work<T>) {
        let [gate, up] = [Slot::Gate, Slot::Up].map(|slot| &saved.outputs[slot as usize][..]);
        let d_hidden = room(&mut work.input, gate.len());
        let d_down = &work.slots[Slot::Down as usize];
        linear_back(
            pool,
            self.slot(Slot::Down),
            d_down,
            d_hidden,
            Accum::Replace,
        );
        let [.., d_gate, d_up, _] = &mut work.slots;
        let d = [room(d_gate, gate.len()), room(d_up, up.len())];
        activate_back(pool, self.activation, [gate, up, d_hidden], d);
        let d_normed = room(&mut work.input, saved.middle.len());
        linear_back(
            pool,
            self.slot(Slot::Gate),
            d_gate,
            d_normed,
            Accum::Replace,
        );
        linear_back(pool, self.slot(Slot::Up), d_up, d_normed, Accum::Add);
        let (x, inverse) = (&saved.middle, &saved.inverses[Norm::Ffn as usize]);
        rms_norm_back(pool, x, &self.ffn_norm, inverse, d_normed, &mut work.middle);
        add_weight(pool, Norm::Ffn, [x, inverse, d_normed], &mut work.norms);
    }

    /// From O to queries, keys and values.
    fn attention_back(&self, pool: &Pool, saved: &Saved<T>, work: &mut Work<T>) {
        let d_rows = room(&mut work.input, saved.attended.len());
        let d_o = &work.slots[Slot::O as usize];
        linear_back(pool, self.slot(Slot::O), d_o, d_rows, Accum::Replace);
        let all = self.of_heads();
        let d_attended = room(&mut work.attended, saved.attended.len());
        let out_heads = Heads {
            norm: None,
            rotation: None,
            ..all[0].1
        };
        // Nothing is normed, so that nothing is kept.
        let n = saved.middle.len() / self.width.max(1);
        let mut inverse = vec![T::default(); n * self.heads];
        out_heads.split(pool, d_rows, d_attended, &mut inverse);
        let [q, k, v] = &saved.heads;
        let [dq, dk, dv] = &mut work.heads;
        let d = [room(dq, q.len()), room(dk, k.len()), room(dv, v.len())];
        let of = [&saved.attended[..], &saved.sums, &work.attended];
        self.attend().back(pool, Qkv { q, k, v }, of, d);
        for (index, (slot, heads)) in all.iter().enumerate() {
            let y = &saved.outputs[*slot as usize];
            let from = [&y[..], &saved.of_heads[index], &work.heads[index]];
            let dy = room(&mut work.slots[*slot as usize], y.len());
            heads.merge_back(pool, from, dy);
            if let (Some(_), Some(sums)) = (heads.norm, &mut work.norms) {
                let norm = match slot {
                    Slot::Q => Norm::Query,
                    _ => Norm::Key,
                };
                heads.weight_back(pool, from, &mut sums[norm as usize]);
            }
        }
    }
}

/// Adds the gradient with respect to the weight of a norm of the stream, where it is wanted.
fn add_weight<T: Number>(
    pool: &Pool,
    norm: Norm,
    [x, inverse, dy]: [&[T]; 3],
    norms: &mut Option<[Vec<f64>; 6]>,
) {
    if let Some(sums) = norms {
        norm_weight_back(pool, x, inverse, dy, &mut sums[norm as usize]);
    }
}

/// `x += y`.
fn add<T: Number>(pool: &Pool, y: &[T], x: &mut [T]) {
    /// Numbers of a task.
    const NUMBERS: usize = 1 << 14;
    pool.chunks_mut(x, NUMBERS, |task, x| {
        for (x, &y) in x.iter_mut().zip(&y[task * NUMBERS..]) {
            *x += y;
        }
    });
}

//! One block of the transformer.

use htc_formats::model::{HyperParameters, Site, Slot};

use super::project::{Output, project};
use super::tap::{Look, Point, Tap};
use super::{AdaptedLayer, Buffers, Session};
use crate::backend::{Backend, HeadShape};
use crate::dial::Setting;
use crate::error::ExecError;
use crate::kv::Keeper;
use crate::model::Layer;

/// A block in execution: what its parts have in common.
struct Block<'a, B: Backend> {
    backend: &'a mut B,
    hyper: &'a HyperParameters,
    layer: &'a Layer<B>,
    /// Rows of the batch.
    n: usize,
    setting: Setting,
    /// What stands for the basis of Q, K and V and what is behind it.
    adapted: Option<&'a AdaptedLayer<B>>,
    look: Look<'a>,
}

impl<B: Backend> Session<B> {
    /// Block `index` on the `n` rows of the batch, which follow the positions read so far;
    /// the batch's rotations are filled in.
    pub(super) fn block_of_batch(
        &mut self,
        index: usize,
        n: usize,
        tap: &mut dyn Tap,
    ) -> Result<(), ExecError> {
        let mut block = Block {
            backend: &mut self.backend,
            hyper: self.model.hyper(),
            layer: &self.model.layers[index],
            n,
            setting: self.setting,
            adapted: self.adapted.as_deref().and_then(|a| a.layer(index)),
            look: Look {
                tap,
                layer: index,
                n,
                room: &mut self.room,
            },
        };
        block.attention(&mut self.kv, &mut self.keeper, index, &mut self.buffers)?;
        block.feed_forward(&mut self.buffers)
    }
}

impl<B: Backend> Block<'_, B> {
    fn attention(
        &mut self,
        kv: &mut B::Kv,
        keeper: &mut Keeper,
        index: usize,
        b: &mut Buffers<B>,
    ) -> Result<(), ExecError> {
        let (hyper, layer, n) = (self.hyper, self.layer, self.n);
        let heads = |heads| HeadShape {
            rows: n,
            heads,
            size: hyper.head_size,
        };
        let (queries, keys) = (heads(hyper.heads), heads(hyper.kv_heads));
        let q_width = hyper.heads * hyper.head_size;
        let kv_width = hyper.kv_heads * hyper.head_size;
        let epsilon = hyper.norm_epsilon;
        let norm = &layer.attention_norm;
        self.backend
            .rms_norm(n, &b.x, norm, epsilon, &mut b.normed)?;
        let site = Point::Input(Site::Attention);
        self.look.at(self.backend, site, hyper.width, &b.normed)?;
        // What was adapted is as wide as it is to be.
        let (basis, [q, k, v], setting) = match self.adapted {
            Some(of) => (Some(&of.basis), of.qkv.each_ref(), Setting::FULL),
            None => {
                let qkv = [&layer.q, &layer.k, &layer.v];
                (layer.qkv_basis.as_ref(), qkv, self.setting)
            }
        };
        let outputs = [(q, &mut b.q), (k, &mut b.k), (v, &mut b.v)];
        project(
            self.backend,
            n,
            &b.normed,
            basis,
            setting,
            outputs.map(|(linear, y)| Output { linear, y }),
            &mut b.extra,
        )?;
        self.add_bias(Slot::Q, &mut b.q)?;
        self.add_bias(Slot::K, &mut b.k)?;
        self.add_bias(Slot::V, &mut b.v)?;
        self.norm_in_place(n * hyper.heads, &mut b.q, layer.query_norm.as_ref())?;
        self.norm_in_place(n * hyper.kv_heads, &mut b.k, layer.key_norm.as_ref())?;
        let rotation = match layer.local_rope {
            true => &b.local_rotation,
            false => &b.rotation,
        };
        let pairs = hyper.forward.rope_pairs;
        self.backend.rope(pairs, rotation, queries, &mut b.q)?;
        self.backend.rope(pairs, rotation, keys, &mut b.k)?;
        let look = &mut self.look;
        look.at(self.backend, Point::Queries, q_width, &b.q)?;
        look.at(self.backend, Point::Keys, kv_width, &b.k)?;
        look.at(self.backend, Point::Values, kv_width, &b.v)?;
        if keeper.rotates() {
            self.backend.hadamard(queries, &mut b.q)?;
            self.backend.hadamard(keys, &mut b.k)?;
            self.backend.hadamard(keys, &mut b.v)?;
        }
        self.backend.append(kv, index, n, &b.k, &b.v)?;
        let (attention, out) = (&layer.attention, &mut b.attended);
        self.backend
            .attention(queries, &b.q, kv, index, attention, out)?;
        keeper.look(self.backend, kv, index, (queries, &b.q), attention)?;
        if keeper.rotates() {
            self.backend.hadamard(queries, &mut b.attended)?;
        }
        let site = Point::Input(Site::AttentionOutput);
        look.at(self.backend, site, q_width, &b.attended)?;
        self.project_back(Slot::O, &b.attended, &mut b.delta, &mut b.extra)?;
        self.norm_in_place(n, &mut b.delta, layer.post_attention_norm.as_ref())?;
        let branch = Point::AttentionBranch;
        self.look.at(self.backend, branch, hyper.width, &b.delta)?;
        self.backend.add(n * hyper.width, &mut b.x, &b.delta)
    }

    fn feed_forward(&mut self, b: &mut Buffers<B>) -> Result<(), ExecError> {
        let (hyper, layer, n) = (self.hyper, self.layer, self.n);
        let (norm, epsilon) = (&layer.ffn_norm, hyper.norm_epsilon);
        self.backend
            .rms_norm(n, &b.x, norm, epsilon, &mut b.normed)?;
        let site = Point::Input(Site::Ffn);
        self.look.at(self.backend, site, hyper.width, &b.normed)?;
        let outputs = [(&layer.gate, &mut b.gate), (&layer.up, &mut b.up)];
        project(
            self.backend,
            n,
            &b.normed,
            layer.gate_up_basis.as_ref(),
            self.setting,
            outputs.map(|(linear, y)| Output { linear, y }),
            &mut b.extra,
        )?;
        self.add_bias(Slot::Gate, &mut b.gate)?;
        self.add_bias(Slot::Up, &mut b.up)?;
        let (activation, numbers) = (hyper.forward.activation, n * hyper.ffn);
        self.backend
            .activate(activation, numbers, &mut b.gate, &b.up)?;
        let site = Point::Input(Site::FfnHidden);
        self.look.at(self.backend, site, hyper.ffn, &b.gate)?;
        self.project_back(Slot::Down, &b.gate, &mut b.delta, &mut b.extra)?;
        self.norm_in_place(n, &mut b.delta, layer.post_ffn_norm.as_ref())?;
        let branch = Point::FfnBranch;
        self.look.at(self.backend, branch, hyper.width, &b.delta)?;
        self.backend.add(n * hyper.width, &mut b.x, &b.delta)
    }

    /// The slot that writes to the residual stream, O or down, with its bias.
    fn project_back(
        &mut self,
        slot: Slot,
        x: &B::Buffer,
        y: &mut B::Buffer,
        extra: &mut B::Buffer,
    ) -> Result<(), ExecError> {
        let linear = match slot {
            Slot::O => &self.layer.o,
            _ => &self.layer.down,
        };
        let output = Output { linear, y };
        project(self.backend, self.n, x, None, self.setting, [output], extra)?;
        self.add_bias(slot, y)
    }

    fn add_bias(&mut self, slot: Slot, y: &mut B::Buffer) -> Result<(), ExecError> {
        match self.layer.bias(slot) {
            Some(bias) => self.backend.add_bias(self.n, y, bias),
            None => Ok(()),
        }
    }

    /// The norm of `rows` rows, where there is one.
    fn norm_in_place(
        &mut self,
        rows: usize,
        x: &mut B::Buffer,
        weight: Option<&B::Vector>,
    ) -> Result<(), ExecError> {
        let epsilon = self.hyper.norm_epsilon;
        match weight {
            Some(weight) => self.backend.rms_norm_in_place(rows, x, weight, epsilon),
            None => Ok(()),
        }
    }
}

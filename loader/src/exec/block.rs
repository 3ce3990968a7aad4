//! One block of the transformer.

use htc_formats::model::{Activation, Site, Slot};
use htc_kernels::cpu;

use super::Session;
use super::project::{Output, project};
use super::tap::{Point, Tap};
use crate::error::ExecError;

impl Session<'_> {
    /// Block `index` on the `n` rows of the batch, which follow the positions read so far;
    /// the batch's rotations are filled in.
    pub(super) fn block_of_batch(
        &mut self,
        index: usize,
        n: usize,
        tap: &mut dyn Tap,
    ) -> Result<(), ExecError> {
        let (model, pool, hyper) = (self.model, self.pool, self.model.hyper());
        let start = self.kv.len();
        let q_width = hyper.heads * hyper.head_size;
        let kv_width = hyper.kv_heads * hyper.head_size;
        let layer = &model.layers[index];
        let b = &mut self.buffers;
        let norm = |x: &[f32], weight: &[f32], out: &mut [f32]| {
            cpu::rms_norm(pool, x, weight, hyper.norm_epsilon, out)
        };
        let norm_in_place = |x: &mut [f32], weight: Option<&Vec<f32>>| match weight {
            Some(weight) => cpu::rms_norm_in_place(pool, x, weight, hyper.norm_epsilon),
            None => Ok(()),
        };
        let add_bias = |slot: Slot, y: &mut [f32]| match layer.bias(slot) {
            Some(bias) => cpu::add_bias(pool, y, bias),
            None => Ok(()),
        };
        norm(&b.x, &layer.attention_norm, &mut b.normed)?;
        tap.see(index, Point::Input(Site::Attention), &b.normed);
        project(
            pool,
            n,
            &b.normed,
            layer.qkv_basis.as_ref(),
            self.rank,
            &mut [
                Output::new(&layer.q, &mut b.q),
                Output::new(&layer.k, &mut b.k),
                Output::new(&layer.v, &mut b.v),
            ],
            &mut b.workspace,
        )?;
        add_bias(Slot::Q, &mut b.q)?;
        add_bias(Slot::K, &mut b.k)?;
        add_bias(Slot::V, &mut b.v)?;
        norm_in_place(&mut b.q, layer.query_norm.as_ref())?;
        norm_in_place(&mut b.k, layer.key_norm.as_ref())?;
        let rotation = match layer.local_rope {
            true => &b.local_rotation,
            false => &b.rotation,
        };
        let pairs = hyper.forward.rope_pairs;
        rotation.apply(pairs, &mut b.q, q_width, hyper.head_size)?;
        rotation.apply(pairs, &mut b.k, kv_width, hyper.head_size)?;
        tap.see(index, Point::Queries, &b.q);
        tap.see(index, Point::Keys, &b.k);
        tap.see(index, Point::Values, &b.v);
        self.kv.append(index, &b.k, &b.v)?;
        let (kv, scratch) = (self.kv.view(index)?, &mut b.workspace.scratch);
        let (attention, out) = (&layer.attention, &mut b.attended);
        if n == 1 {
            cpu::attention_decode(pool, &b.q, &kv, start + 1, attention, scratch, out)?;
        } else {
            cpu::attention_prefill(pool, &b.q, n, start, &kv, attention, scratch, out)?;
        }
        tap.see(index, Point::Input(Site::AttentionOutput), &b.attended);
        project(
            pool,
            n,
            &b.attended,
            None,
            self.rank,
            &mut [Output::new(&layer.o, &mut b.delta)],
            &mut b.workspace,
        )?;
        add_bias(Slot::O, &mut b.delta)?;
        norm_in_place(&mut b.delta, layer.post_attention_norm.as_ref())?;
        tap.see(index, Point::AttentionBranch, &b.delta);
        cpu::add_assign(pool, &mut b.x, &b.delta)?;

        norm(&b.x, &layer.ffn_norm, &mut b.normed)?;
        tap.see(index, Point::Input(Site::Ffn), &b.normed);
        project(
            pool,
            n,
            &b.normed,
            layer.gate_up_basis.as_ref(),
            self.rank,
            &mut [
                Output::new(&layer.gate, &mut b.gate),
                Output::new(&layer.up, &mut b.up),
            ],
            &mut b.workspace,
        )?;
        add_bias(Slot::Gate, &mut b.gate)?;
        add_bias(Slot::Up, &mut b.up)?;
        match hyper.forward.activation {
            Activation::Silu => cpu::silu_mul(pool, &mut b.gate, &b.up)?,
            Activation::GeluTanh => cpu::gelu_mul(pool, &mut b.gate, &b.up)?,
        }
        tap.see(index, Point::Input(Site::FfnHidden), &b.gate);
        project(
            pool,
            n,
            &b.gate,
            None,
            self.rank,
            &mut [Output::new(&layer.down, &mut b.delta)],
            &mut b.workspace,
        )?;
        add_bias(Slot::Down, &mut b.delta)?;
        norm_in_place(&mut b.delta, layer.post_ffn_norm.as_ref())?;
        tap.see(index, Point::FfnBranch, &b.delta);
        cpu::add_assign(pool, &mut b.x, &b.delta)?;
        Ok(())
    }
}

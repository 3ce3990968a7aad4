//! Verification of draft tokens.

use super::{Session, Tap};
use crate::backend::Backend;
use crate::error::Result;
use crate::linear::{Linear, Placed};

impl<B: Backend> Session<B> {
    /// Reads `tokens` (at most [`Session::batch`]) in one pass that is bitwise identical to reading
    /// them one by one; returns the logits `[n, vocabulary]` after each.
    ///
    /// Keys and values, too, are those of single steps, so [`Session::truncate`] leaves the session
    /// as if it had never read the rest.
    ///
    /// # Errors
    /// As [`Session::forward`];
    /// [`ExecError::VerifyUnsupported`](crate::ExecError::VerifyUnsupported) for low-rank KV
    /// caches: single steps would compress in between, which cannot be undone.
    pub fn verify(&mut self, tokens: &[u32], tap: &mut dyn Tap) -> Result<&[f32]> {
        self.check_can_verify()?;
        self.runner.backend.set_batch_invariant(true);
        let read = self.forward_with(tokens, tap);
        let rows = self.rows;
        let computed = read.and_then(|()| self.compute_logits(0, rows));
        self.runner.backend.set_batch_invariant(false);
        let numbers = computed?;
        self.runner.read_logits(numbers)
    }

    /// Returns the head's rows for `tokens`, `[tokens, width]`; a factorised head is multiplied
    /// out.
    pub(crate) fn head_vectors(&mut self, tokens: &[u32], out: &mut Vec<f32>) -> Result<()> {
        let model = std::sync::Arc::clone(&self.runner.model);
        out.clear();
        match model.head() {
            Linear::Dense(w) | Linear::SharedBasis { projected: w } => self.rows_of(w, tokens, out),
            Linear::LowRank { a, b } => self.rows_behind(a, b, tokens, out),
            Linear::Residual { base, a, b } => {
                self.rows_of(base, tokens, out)?;
                let mut lacking = Vec::new();
                self.rows_behind(a, b, tokens, &mut lacking)?;
                add(out, &lacking);
                Ok(())
            }
            Linear::Refined {
                base,
                refinement,
                place,
            } => {
                self.rows_of(base, tokens, out)?;
                if self.runner.setting.is_active(*place) {
                    let mut lacking = Vec::new();
                    self.rows_of(refinement, tokens, &mut lacking)?;
                    add(out, &lacking);
                }
                Ok(())
            }
        }
    }

    fn rows_of(&mut self, w: &Placed<B::Weight>, rows: &[u32], out: &mut Vec<f32>) -> Result<()> {
        let runner = &mut self.runner;
        let (backend, buffer) = (&mut runner.backend, &mut runner.buffers.extra);
        let numbers = rows.len() * w.cols;
        backend.resize(buffer, numbers)?;
        backend.embed(&w.weight, rows, None, buffer)?;
        out.extend_from_slice(backend.read(buffer, numbers, &mut runner.host_buffer)?);
        Ok(())
    }

    /// Returns rows of `B A`, at the active rank.
    fn rows_behind(
        &mut self,
        a: &Placed<B::Weight>,
        b: &Placed<B::Weight>,
        rows: &[u32],
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let rank = self.runner.setting.rank.active_rank(a.rows);
        let (mut first, mut second) = (Vec::new(), Vec::new());
        self.rows_of(b, rows, &mut second)?;
        let all: Vec<u32> = (0..rank as u32).collect();
        self.rows_of(a, &all, &mut first)?;
        out.resize(rows.len() * a.cols, 0.0);
        for (out, weights) in out
            .chunks_exact_mut(a.cols)
            .zip(second.chunks_exact(b.cols))
        {
            for (component, &weight) in first.chunks_exact(a.cols).zip(weights) {
                for (out, &number) in out.iter_mut().zip(component) {
                    *out += weight * number;
                }
            }
        }
        Ok(())
    }
}

fn add(to: &mut [f32], from: &[f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += from;
    }
}

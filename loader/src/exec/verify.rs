//! Reading positions that were foreseen.

use super::{Session, Tap};
use crate::backend::Backend;
use crate::error::ExecError;

impl<B: Backend> Session<B> {
    /// Reads `tokens` (few, at most [`Session::batch`]) after what was read before, in one pass and with the bits that
    /// reading them one by one has: the logits `[n, vocabulary]` behind each.
    ///
    /// Keys and values, too, are those of single steps; so what is kept after [`Session::truncate`] is what a session
    /// has that read nothing else.
    ///
    /// # Errors
    /// As [`Session::forward`].
    pub fn verify(&mut self, tokens: &[u32], tap: &mut dyn Tap) -> Result<&[f32], ExecError> {
        self.backend.keep_apart(true);
        let read = self.forward_with(tokens, tap);
        let rows = self.rows;
        // Not what `logits` gives, which borrows the session.
        let logits = read.and_then(|()| self.logits(0, rows).map(drop));
        self.backend.keep_apart(false);
        logits?;
        let numbers = rows * self.model.hyper().vocabulary;
        self.backend
            .read(&self.buffers.logits, numbers, &mut self.room)
    }
}

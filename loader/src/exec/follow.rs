//! As much of a model as its device allows.

use std::sync::Arc;

use super::Session;
use crate::backend::Backend;
use crate::dial::ActiveFraction;
use crate::error::ExecError;
use crate::live::SharedFraction;

/// What a session follows.
pub(super) struct Followed {
    follow: Arc<SharedFraction>,
    /// What it touches at most, and the least that the model can do with.
    most: ActiveFraction,
    least: f64,
    /// What was allowed last.
    allowed: f64,
    /// Least and largest part of the bytes that were in use; nothing was yet.
    range: Option<[f64; 2]>,
}

impl<B: Backend> Session<B> {
    /// Touches of the part `most` of the weights' bytes as much as `follow` allows from now on, whenever
    /// [`follow`](Session::follow) is called; never less than the model can do with.
    ///
    /// # Errors
    /// [`ExecError::FractionBelow`] for a `most` that the model cannot do with.
    pub fn follow_with(
        &mut self,
        follow: Arc<SharedFraction>,
        most: ActiveFraction,
    ) -> Result<(), ExecError> {
        self.set_fraction(most)?;
        let dial = self.model.dial();
        self.followed = Some(Followed {
            follow,
            most,
            least: dial.smallest_fraction(),
            allowed: 1.0,
            range: None,
        });
        Ok(())
    }

    /// Takes up what is allowed at the moment, between two tokens: one load of one number where nothing has changed,
    /// and else no more than finding the setting. Nothing is copied. Does nothing in a session that follows nothing.
    ///
    /// # Errors
    /// None that a follower of this crate causes; [`ExecError::ActiveFraction`] for a number that is no fraction.
    pub fn follow(&mut self) -> Result<(), ExecError> {
        let Some(followed) = &mut self.followed else {
            return Ok(());
        };
        let allowed = followed.follow.fraction();
        // Compared as it is stored: nothing is computed from it.
        if allowed.to_bits() == followed.allowed.to_bits() && followed.range.is_some() {
            return Ok(());
        }
        let fraction = ActiveFraction::new((followed.most.get() * allowed).max(followed.least))?;
        let dial = self.model.dial();
        self.setting = dial.setting_for(fraction)?;
        let in_use = dial.fraction(self.setting);
        let [least, largest] = followed.range.unwrap_or([in_use; 2]);
        followed.range = Some([least.min(in_use), largest.max(in_use)]);
        followed.allowed = allowed;
        Ok(())
    }

    /// Least and largest part of the weights' bytes that were in use whenever the session was told to
    /// [follow](Session::follow); what is in use where it never was.
    pub fn fractions(&self) -> [f64; 2] {
        let followed = self.followed.as_ref().and_then(|of| of.range);
        followed.unwrap_or([self.model.dial().fraction(self.setting); 2])
    }
}

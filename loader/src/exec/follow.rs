//! Active fraction controlled by the device's state.

use std::sync::Arc;

use super::Session;
use crate::backend::Backend;
use crate::dial::ActiveFraction;
use crate::error::Result;
use crate::live::SharedFraction;

pub(super) struct Followed {
    follow: Arc<SharedFraction>,
    /// Upper limit.
    most: ActiveFraction,
    least: f64,
    /// Last allowed fraction.
    allowed: f64,
    /// Smallest and largest fraction in use so far.
    range: Option<[f64; 2]>,
}

impl<B: Backend> Session<B> {
    /// Adapts the active fraction of weight bytes to `follow` on each call of
    /// [`follow`](Session::follow), between the model's minimum and `most`.
    ///
    /// # Errors
    /// [`ExecError::FractionBelow`](crate::ExecError::FractionBelow) if `most` is below the model's minimum.
    pub fn follow_with(&mut self, follow: Arc<SharedFraction>, most: ActiveFraction) -> Result<()> {
        self.set_fraction(most)?;
        let dial = self.runner.model.dial();
        self.followed = Some(Followed {
            follow,
            most,
            least: dial.smallest_fraction(),
            allowed: 1.0,
            range: None,
        });
        Ok(())
    }

    /// Applies the currently allowed fraction, between two tokens. Costs one load if unchanged,
    /// else finding the setting; copies nothing. Does nothing without
    /// [`follow_with`](Session::follow_with).
    ///
    /// # Errors
    /// [`ExecError::Fraction`](crate::ExecError::Fraction) for an invalid number, which followers of
    /// this crate never give.
    pub fn follow(&mut self) -> Result<()> {
        let Some(followed) = &mut self.followed else {
            return Ok(());
        };
        let allowed = followed.follow.fraction();
        // Bitwise comparison of the stored value.
        if allowed.to_bits() == followed.allowed.to_bits() && followed.range.is_some() {
            return Ok(());
        }
        let fraction = ActiveFraction::new((followed.most.get() * allowed).max(followed.least))?;
        let dial = self.runner.model.dial();
        self.runner.setting = dial.setting_for(fraction)?;
        let in_use = dial.fraction(self.runner.setting);
        let [least, largest] = followed.range.unwrap_or([in_use; 2]);
        followed.range = Some([least.min(in_use), largest.max(in_use)]);
        followed.allowed = allowed;
        Ok(())
    }

    /// Returns the smallest and largest fraction of weight bytes in use at calls of
    /// [`follow`](Session::follow); the current one if never called.
    pub fn fractions(&self) -> [f64; 2] {
        let followed = self.followed.as_ref().and_then(|of| of.range);
        followed.unwrap_or([self.runner.model.dial().fraction(self.runner.setting); 2])
    }
}

//! Options that are on or off.

/// Value of an option that is on or off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Switch {
    /// On.
    On,
    /// Off.
    #[default]
    Off,
}

named!(Switch, "on or off", On: "on", Off: "off");

impl Switch {
    /// Returns true if it is on.
    pub const fn is_on(self) -> bool {
        matches!(self, Switch::On)
    }

    pub(super) fn is_off(&self) -> bool {
        !self.is_on()
    }
}

impl From<bool> for Switch {
    fn from(on: bool) -> Switch {
        if on { Switch::On } else { Switch::Off }
    }
}

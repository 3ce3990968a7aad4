//! Unicode normalisation forms of a vocabulary.

use serde::{Deserialize, Serialize};

/// A normalisation form of Unicode (Standard Annex 15).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum UnicodeForm {
    /// Canonical composition.
    Nfc,
    /// Canonical decomposition.
    Nfd,
    /// Compatibility composition.
    Nfkc,
    /// Compatibility decomposition.
    Nfkd,
}

impl UnicodeForm {
    /// All forms.
    pub const ALL: [UnicodeForm; 4] = [
        UnicodeForm::Nfc,
        UnicodeForm::Nfd,
        UnicodeForm::Nfkc,
        UnicodeForm::Nfkd,
    ];

    /// Returns the form with a name such as `NFC`.
    pub fn from_name(name: &str) -> Option<Self> {
        let mut all = UnicodeForm::ALL.into_iter();
        all.find(|form| form.name() == name)
    }

    /// Returns the name, such as `NFC`.
    pub fn name(self) -> &'static str {
        match self {
            UnicodeForm::Nfc => "NFC",
            UnicodeForm::Nfd => "NFD",
            UnicodeForm::Nfkc => "NFKC",
            UnicodeForm::Nfkd => "NFKD",
        }
    }
}

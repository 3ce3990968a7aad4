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

const NAMES: [(&str, UnicodeForm); 4] = [
    ("NFC", UnicodeForm::Nfc),
    ("NFD", UnicodeForm::Nfd),
    ("NFKC", UnicodeForm::Nfkc),
    ("NFKD", UnicodeForm::Nfkd),
];

impl UnicodeForm {
    /// Returns the form with a name such as `NFC`.
    pub fn from_name(name: &str) -> Option<Self> {
        let (_, form) = NAMES.iter().find(|(known, _)| *known == name)?;
        Some(*form)
    }

    /// Returns the name, such as `NFC`.
    pub fn name(self) -> &'static str {
        let found = NAMES.iter().find(|(_, form)| *form == self);
        found.map_or("", |(name, _)| name)
    }
}

//! Shipped calibration text: articles, fiction, code, dialogues, mathematics and other languages
//! than English. A model calibrated on it loses as little on code or German as on an encyclopaedia.
//! `compiler/assets/calibration/SOURCES.md` lists sources and licences.

use htc_formats::htz::Digest;

const DOCUMENT_SEPARATOR: &str = "\n%%\n";

/// Golden ratio of 2³².
const GOLDEN: u32 = 0x9e37_79b9;

/// Documents of one kind or language.
#[derive(Debug)]
pub struct ShippedPart {
    /// File name of the part.
    pub name: &'static str,
    text: &'static str,
}

macro_rules! parts {
    ($($name:literal),+ $(,)?) => {
        &[$(ShippedPart {
            name: $name,
            text: include_str!(concat!("../../assets/calibration/", $name, ".txt")),
        }),+]
    };
}

static KINDS: [&[ShippedPart]; 6] = [
    parts![
        "encyclopaedia-science",
        "encyclopaedia-places",
        "encyclopaedia-lives",
        "encyclopaedia-works",
        "encyclopaedia-more",
    ],
    parts!["fiction-alice", "fiction-older", "fiction-stories"],
    parts![
        "code-rust",
        "code-python",
        "code-c",
        "code-web",
        "code-shell-sql"
    ],
    parts!["dialogue", "mathematics"],
    parts!["german", "french", "spanish"],
    parts![
        "italian",
        "portuguese",
        "dutch",
        "polish",
        "turkish",
        "russian",
        "chinese",
        "japanese",
        "korean",
        "arabic",
        "hindi",
    ],
];

impl ShippedPart {
    fn documents(&self) -> impl Iterator<Item = &'static str> {
        self.text.trim_end().split(DOCUMENT_SEPARATOR)
    }

    /// Returns the text with an empty line between documents.
    pub fn text(&self) -> String {
        let documents: Vec<&str> = self.documents().collect();
        documents.join("\n\n")
    }
}

/// Returns the parts selected by `keep` with interleaved documents, first within each kind, then
/// across kinds. Any stretch has about the mix of the whole, so small samples and the held-out
/// windows include every kind.
pub fn shipped_text(mut keep: impl FnMut(&ShippedPart) -> bool) -> String {
    let mut kind = |parts: &'static [ShippedPart]| {
        let kept = parts.iter().filter(|part| keep(part));
        interleave(kept.map(|part| part.documents().collect()).collect())
    };
    interleave(KINDS.iter().map(|parts| kind(parts)).collect()).join("\n\n")
}

/// Interleaves sequences such that any stretch has about the same proportion of each.
///
/// Documents are sorted by the relative position of their middle in their sequence, from 0 to 1.
/// Each sequence is rotated by the golden ratio against the previous one, which spreads the first
/// documents of short sequences evenly for any number of sequences (Weyl's sequence).
fn interleave(sequences: Vec<Vec<&str>>) -> Vec<&str> {
    let mut placed = Vec::new();
    for (documents, index) in sequences.into_iter().zip(0u32..) {
        let bytes: u64 = documents.iter().map(|document| document.len() as u64).sum();
        let mut before = 0;
        for document in documents {
            let len = document.len() as u64;
            // In units of 2⁻³²; below 1, since no document is empty.
            let place = (((2 * before + len) << 31) / bytes) as u32;
            placed.push((place.wrapping_add(index.wrapping_mul(GOLDEN)), document));
            before += len;
        }
    }
    placed.sort_by_key(|(place, _)| *place);
    placed.into_iter().map(|(_, document)| document).collect()
}

/// Returns the digest of the whole text.
pub fn shipped_digest() -> Digest {
    Digest::of_bytes(shipped_text(|_| true).as_bytes())
}

#[cfg(test)]
mod tests;

//! Shipped calibration text: articles, fiction, code, dialogues, mathematics and other languages
//! than English. A model calibrated on it loses as little on code or German as on an encyclopaedia.
//! `assets/calibration/SOURCES.md` lists sources and licences.

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
            text: include_str!(concat!("../../../assets/calibration/", $name, ".txt")),
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
mod tests {
    use std::ops::Range;

    use super::*;
    use crate::options::SHIPPED_VERSION;

    fn parts() -> impl Iterator<Item = &'static ShippedPart> {
        KINDS.iter().copied().flatten()
    }

    /// Update version and digest together.
    #[test]
    fn version_changes_with_the_text() {
        assert_eq!(SHIPPED_VERSION, 1);
        let expected = "a3fe825b07cfef0a0cb9abaf84b87c5a20e3622a2f82dd42da79eb7f983dc0eb";
        assert_eq!(shipped_digest().to_string(), expected);
    }

    #[test]
    fn every_document_occurs_once() {
        let whole = shipped_text(|_| true);
        let mut bytes = 0;
        for document in parts().flat_map(ShippedPart::documents) {
            assert_eq!(whole.matches(document).count(), 1, "{document}");
            assert!(!document.trim().is_empty(), "{document}");
            bytes += document.len() + 2;
        }
        assert_eq!(whole.len() + 2, bytes);
        assert!((240_000..280_000).contains(&whole.len()), "{}", whole.len());
        assert!(!whole.contains("%%\n") && !whole.contains('\r'));
    }

    fn document_ranges<'a>(
        text: &str,
        of: impl Iterator<Item = &'a ShippedPart>,
    ) -> Vec<(usize, usize)> {
        let documents = of.flat_map(ShippedPart::documents);
        let places = documents.filter_map(|d| Some((text.find(d)?, d.len())));
        places.map(|(at, len)| (at, at + len)).collect()
    }

    fn overlap_bytes(places: &[(usize, usize)], part: &Range<usize>) -> usize {
        let overlap = |&(start, end): &(usize, usize)| {
            end.min(part.end).saturating_sub(start.max(part.start))
        };
        places.iter().map(overlap).sum()
    }

    /// An eighth of the text is about 16 windows of 512 tokens.
    #[test]
    fn every_stretch_has_the_overall_mix() {
        let foreign = [
            "russian", "chinese", "japanese", "korean", "arabic", "hindi",
        ];
        for without in [&[][..], &foreign] {
            let keep = |part: &ShippedPart| !without.contains(&part.name);
            let text = shipped_text(keep);
            for (kind, eighth) in (0..KINDS.len()).flat_map(|k| (0..8).map(move |e| (k, e))) {
                let of = document_ranges(&text, KINDS[kind].iter());
                let share = |from: usize, to: usize| {
                    let stretch = text.len() * from / 8..text.len() * to / 8;
                    overlap_bytes(&of, &stretch) as f64 / stretch.len() as f64
                };
                let (found, whole) = (share(eighth, eighth + 1), share(0, 8));
                let said = format!("kind {kind}, eighth {eighth}: {found} of {whole}");
                assert!((found - whole).abs() < 0.06, "{said}");
                assert!(found > 0.4 * whole, "{said}");
            }
            for part in parts().filter(|part| keep(part)) {
                let last = text.len() * 3 / 4..text.len();
                let found = overlap_bytes(&document_ranges(&text, [part].into_iter()), &last);
                assert!(found > 0, "{}", part.name);
            }
        }
    }
}

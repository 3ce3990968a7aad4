//! Content of a calibration text for one model.

use htc_formats::htz::Digest;
use htc_loader::tokenizer::{AddSpecialTokens, Tokenizer};

use super::CalibrateError;
use super::shipped::{ShippedPart, shipped_digest, shipped_text};
use crate::options::TextSource;
use crate::system::text;

/// Text as one model reads it.
#[derive(Debug)]
pub(super) struct CalibrationContents {
    pub(super) text: String,
    /// Digest of the complete source text.
    pub(super) sha256: Digest,
    /// Names of the skipped parts of the shipped text.
    pub(super) left_out: Vec<String>,
}

impl CalibrationContents {
    pub(super) fn read(
        source: &TextSource,
        tokenizer: &Tokenizer,
    ) -> Result<CalibrationContents, CalibrateError> {
        let mut left_out = Vec::new();
        let (text, sha256) = match source {
            TextSource::File(path) => {
                let text = text::read(path)?;
                let sha256 = Digest::of_bytes(text.as_bytes());
                (text, sha256)
            }
            TextSource::Shipped => {
                let text = shipped_text(|part| {
                    let keep = is_covered(part, tokenizer);
                    if !keep {
                        left_out.push(part.name.to_owned());
                    }
                    keep
                });
                (text, shipped_digest())
            }
        };
        Ok(CalibrationContents {
            text,
            sha256,
            left_out,
        })
    }
}

/// At most three tokens per two characters: otherwise the script is encoded as bytes, which the
/// model cannot read.
fn is_covered(part: &ShippedPart, tokenizer: &Tokenizer) -> bool {
    let text = part.text();
    let tokens = tokenizer.encode(&text, AddSpecialTokens::TextOnly).len();
    2 * tokens <= 3 * text.chars().count()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use htc_formats::source::ModelFile;

    use super::*;
    use crate::calibrate::windows::Windows;
    use crate::options::{DEFAULT_CONTEXT, DEFAULT_TOKENS};

    fn demo_tokenizer() -> Tokenizer {
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/demo");
        let file = ModelFile::open(demo.join("reference-7m-f16.gguf")).unwrap();
        Tokenizer::new(file.vocabulary.unwrap()).unwrap()
    }

    #[test]
    fn scripts_outside_the_vocabulary_are_skipped() {
        let tokenizer = demo_tokenizer();
        let contents = CalibrationContents::read(&TextSource::Shipped, &tokenizer).unwrap();
        let foreign = [
            "russian", "chinese", "japanese", "korean", "arabic", "hindi",
        ];
        assert_eq!(contents.left_out, foreign);
        assert_eq!(contents.sha256, shipped_digest());
        let without = shipped_text(|part| !foreign.contains(&part.name));
        assert_eq!(contents.text, without);
    }

    #[test]
    fn shipped_text_fills_the_default_windows() {
        let tokenizer = demo_tokenizer();
        let text = CalibrationContents::read(&TextSource::Shipped, &tokenizer)
            .unwrap()
            .text;
        let windows = Windows::new(&tokenizer, &text, DEFAULT_CONTEXT, None).unwrap();
        for window in windows.iter() {
            let unlike: std::collections::BTreeSet<_> = window.iter().collect();
            assert!(unlike.len() > DEFAULT_CONTEXT / 8, "{}", unlike.len());
        }
        let (used, held_out) = windows.hold_out(DEFAULT_TOKENS / DEFAULT_CONTEXT);
        assert!(used.count() >= 110, "{}", used.count());
        assert!(held_out.unwrap().count() >= 27);
    }
}

//! Content of a calibration text for one model.

use htc_formats::htz::Digest;
use htc_loader::tokenizer::{AddSpecialTokens, Tokenizer};

use super::PassError;
use super::shipped::{ShippedPart, shipped_digest, shipped_text};
use crate::options::TextSource;
use crate::system::text;

/// Returns a text as one model reads it, the digest of the complete text, and the names of the
/// skipped parts of the shipped text.
pub(super) fn read(
    source: &TextSource,
    tokenizer: &Tokenizer,
) -> Result<(String, Digest, Vec<String>), PassError> {
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
    Ok((text, sha256, left_out))
}

/// At most three tokens per two characters: otherwise the script is encoded as bytes, which the
/// model cannot read.
fn is_covered(part: &ShippedPart, tokenizer: &Tokenizer) -> bool {
    let text = part.text();
    let tokens = tokenizer.encode(&text, AddSpecialTokens::TextOnly).len();
    2 * tokens <= 3 * text.chars().count()
}

#[cfg(test)]
mod tests;

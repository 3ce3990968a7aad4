//! Content of a calibration text for one model.

use htc_formats::htz::Digest;
use htc_loader::tokenizer::{AddSpecialTokens, Tokenizer};

use super::PassError;
use super::shipped::{ShippedPart, shipped_digest, shipped_text};
use crate::options::TextSource;
use crate::system::text;

/// A text as one model reads it.
pub(super) struct Contents {
    pub text: String,
    /// Digest of the complete text.
    pub sha256: Digest,
    /// Names of the skipped parts of the shipped text.
    pub left_out: Vec<String>,
    /// Remarks on the file.
    pub remarks: Vec<String>,
}

/// Returns a text as one model reads it.
pub(super) fn read(source: &TextSource, tokenizer: &Tokenizer) -> Result<Contents, PassError> {
    let (mut left_out, mut remarks) = (Vec::new(), Vec::new());
    let (text, sha256) = match source {
        TextSource::File(path) => {
            let corpus = text::read_corpus(path)?;
            remarks = corpus.remarks;
            let sha256 = Digest::of_bytes(corpus.text.as_bytes());
            (corpus.text, sha256)
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
    Ok(Contents {
        text,
        sha256,
        left_out,
        remarks,
    })
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

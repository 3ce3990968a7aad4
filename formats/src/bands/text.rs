//! Text form of the codes of a matrix, see [`Codes`].

use std::fmt;
use std::str::FromStr;

use super::code::parse_canonical_number;
use super::{Code, CodeKind, Codes, GROUP_COLS, TABLES_VERSION};
use crate::CodecError;
use crate::escape::escape_truncated;
use crate::limits::MAX_WIDTH;

impl fmt::Display for Codes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rotated = if self.is_rotated() { "r" } else { "" };
        write!(f, "{}{rotated}:", self.version())?;
        for (i, run) in self.chunk_by(|a, b| a == b).enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            let code = run[0];
            let letter = code.kind().letter();
            write!(f, "{letter}{}x{}", code.bits(), run.len())?;
        }
        match self.padding() {
            0 => Ok(()),
            padding => write!(f, "-{padding}"),
        }
    }
}

impl FromStr for Codes {
    type Err = CodecError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = |expected: &str, found: &str| CodecError::MalformedCodes {
            expected: expected.to_owned(),
            found: escape_truncated(found),
        };
        let (version, runs) = text
            .split_once(':')
            .ok_or_else(|| wrong("a version and runs, as 2:t3x60,l4x4", text))?;
        let (version, rotated) = match version.strip_suffix('r') {
            Some(version) => (version, true),
            None => (version, false),
        };
        let known =
            parse_canonical_number(version).filter(|known| (1..=TABLES_VERSION).contains(known));
        let Some(known) = known else {
            return Err(CodecError::Tables {
                found: escape_truncated(version),
            });
        };
        let (runs, padding) = match runs.split_once('-') {
            None => (runs, 0),
            Some((runs, padding)) => {
                let found =
                    parse_canonical_number(padding).filter(|found| (1..GROUP_COLS).contains(found));
                let expected = format!("1 to {} columns of padding behind a minus", GROUP_COLS - 1);
                (runs, found.ok_or_else(|| wrong(&expected, padding))?)
            }
        };
        let mut codes = Vec::new();
        for run in runs.split(',') {
            let malformed = || wrong("a run of a code, as t3x60", run);
            let kind = match run.chars().next() {
                Some('l') => CodeKind::Codebook,
                Some('t') => CodeKind::Trellis,
                _ => return Err(malformed()),
            };
            let (bits, count) = run[1..].split_once('x').ok_or_else(malformed)?;
            let code = Code::new(kind, parse_canonical_number(bits).ok_or_else(malformed)?)?;
            let code = code.with_version(known);
            let count: usize = parse_canonical_number(count).ok_or_else(malformed)?;
            let most = MAX_WIDTH / GROUP_COLS - codes.len();
            if count == 0 || count > most {
                return Err(wrong(&format!("a run of 1 to {most} bands"), run));
            }
            if codes.last() == Some(&code) {
                return Err(wrong("another code than in the run before", run));
            }
            codes.extend(std::iter::repeat_n(code, count));
        }
        let cols = codes.len() * GROUP_COLS - padding;
        let codes = Codes::new(codes, cols)?;
        if codes.version() != known {
            return Err(wrong("version 1 where there are levels alone", version));
        }
        if !rotated {
            Ok(codes)
        } else if cols < GROUP_COLS {
            Err(wrong("no r where no band is whole", text))
        } else {
            Ok(codes.with_rotation())
        }
    }
}

crate::serde_as_text!(Codes);

/// Returns the number of column groups of all classes in the text of a
/// [`CodeLayout`](super::CodeLayout), without expanding it. Ignores runs that are longer than any
/// row, which the parser refuses.
pub(crate) fn count_groups(text: &str) -> usize {
    let counts = text.split('x').skip(1).filter_map(|run| {
        let digits = run.find(|c: char| !c.is_ascii_digit());
        let count = run[..digits.unwrap_or(run.len())].parse().ok()?;
        (count <= MAX_WIDTH / GROUP_COLS).then_some(count)
    });
    counts.fold(0, usize::saturating_add)
}

#[cfg(test)]
mod tests;

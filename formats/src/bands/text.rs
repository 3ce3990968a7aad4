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

#[cfg(test)]
mod tests {
    use super::*;

    fn mixed() -> Codes {
        "2:t3x2,l4x1,t2x1".parse().unwrap()
    }

    #[test]
    fn codes_round_trip_through_text_and_others_are_refused() {
        for code in Code::all() {
            assert_eq!(code.to_string().parse(), Ok(code));
            let codes = Codes::uniform(code, 96).unwrap();
            assert_eq!(codes.to_string().parse(), Ok(codes.clone()));
            assert_eq!(codes.uniform_code(), Some(code));
        }
        for code in Code::legacy() {
            let codes = Codes::uniform(code, 96).unwrap();
            assert_eq!(codes.to_string(), format!("1:t{}x3", code.bits()));
            assert_eq!(codes.to_string().parse(), Ok(codes));
            assert_eq!(
                code.to_string(),
                format!("trellis{} (tables 1)", code.bits())
            );
            assert!(code.to_string().parse::<Code>().is_err());
            let mixed = vec![Code::codebook(4).unwrap(), code, Code::trellis(2).unwrap()];
            let refused = Codes::new(mixed, 96).unwrap_err();
            assert_eq!(
                refused,
                CodecError::Mixed {
                    first: 1,
                    second: 2
                }
            );
        }
        for cols in [1, 31, 33, 172, 356, 1000] {
            for code in Code::all() {
                let codes = Codes::uniform(code, cols).unwrap();
                let text = codes.to_string();
                assert!(text.ends_with(&format!("-{}", cols.next_multiple_of(32) - cols)));
                assert_eq!(text.parse(), Ok(codes));
            }
        }
        let padded: Codes = "2:t3x5,l4x1-20".parse().unwrap();
        assert_eq!(
            (padded.cols(), padded.padding(), padded.len()),
            (172, 20, 6)
        );
        assert_eq!(padded.to_string(), "2:t3x5,l4x1-20");
        let rotated: Codes = "2r:t3x5,l4x1-20".parse().unwrap();
        assert!(rotated.is_rotated() && !padded.is_rotated());
        assert_eq!(rotated, padded.with_rotation());
        assert_ne!(rotated, padded);
        assert_eq!(rotated.to_string(), "2r:t3x5,l4x1-20");
        assert_eq!(rotated.bytes(100), padded.bytes(100));
        let narrow: Codes = "1:l4x1-20".parse().unwrap();
        assert_eq!(narrow.with_rotation(), narrow);
        assert_eq!(mixed().to_string(), "2:t3x2,l4x1,t2x1");
        assert_eq!((mixed().cols(), mixed().uniform_code()), (128, None));
        assert_eq!(mixed().mean_bits(), 3.0);
        for text in [
            "levels1", "levels9", "trellis6", "trellis1", "levels04", "levels", "q4_0", "",
        ] {
            assert!(text.parse::<Code>().is_err(), "{text}");
        }
        for text in [
            "",
            "1:",
            "t3x1",
            "1:t3x0",
            "1:t3",
            "1:t3x1,",
            "1:t3x1,t3x1",
            "1:t6x1",
            "1:l1x1",
            "1:q3x1",
            "1:t3x01",
            "1:t3x32769",
            "1:t3x99999999999999999999",
            "1:é3x1",
            "1:l4x32768,l5x1",
            "2:l4x1",
            "0:t3x1",
            "02:t3x1",
            "-1:t3x1",
            "257:t3x1",
            "1:t3x1-",
            "1:t3x1-0",
            "1:t3x1-32",
            "1:t3x1-05",
            "1:t3x1--5",
            "1:t3x1-5,l4x1",
            "1:t3x1,-5",
            "1:-5",
            "-5",
            "r:t3x1",
            "2rr:t3x1",
            "r2:t3x1",
            "2R:t3x1",
            "1r:l4x1-20",
        ] {
            assert!(text.parse::<Codes>().is_err(), "{text}");
        }
        let tables = "3:t3x1".parse::<Codes>().unwrap_err();
        assert!(tables.to_string().contains("version \"3\""), "{tables}");
    }
}

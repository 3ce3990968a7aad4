//! Checks that an exported model reads as the artifact does.

use htc_formats::model::{HyperParameters, RopePairs};
use htc_formats::vocab::{TokenKind, Vocabulary};
use serde_json::Value;

use super::ExportError;

pub(super) fn compare_hyper_parameters(
    artifact: &HyperParameters,
    pairs: RopePairs,
    found: &HyperParameters,
) -> Result<(), ExportError> {
    let mut expected = artifact.clone();
    expected.forward.rope_pairs = pairs;
    if expected == *found {
        return Ok(());
    }
    let json = |hyper: &HyperParameters| serde_json::to_value(hyper).unwrap_or_default();
    let (expected, found) = (json(&expected), json(found));
    let keys = expected.as_object().into_iter().flat_map(|map| map.keys());
    let keys = keys.chain(found.as_object().into_iter().flat_map(|map| map.keys()));
    let entry = |of: &Value, key: &str| of.get(key).cloned().unwrap_or_default();
    let mut keys = keys.filter(|key| entry(&expected, key) != entry(&found, key));
    let what = keys.next().cloned().unwrap_or_default();
    Err(ExportError::Differs {
        expected: entry(&expected, &what).to_string(),
        found: entry(&found, &what).to_string(),
        what,
    })
}

/// A folder cannot mark tokens as unused, which become normal ones, or several tokens as unknown,
/// which become control tokens.
pub(super) fn compare_vocabularies(
    expected: &Vocabulary,
    found: &Vocabulary,
) -> Result<(), ExportError> {
    let kind = |kind: &TokenKind| match kind {
        TokenKind::Unused => TokenKind::Normal,
        TokenKind::Unknown => TokenKind::Control,
        kind => *kind,
    };
    fn tokens(
        of: &Vocabulary,
        kind: impl Fn(&TokenKind) -> TokenKind,
    ) -> impl Iterator<Item = (&str, TokenKind)> {
        let texts = of.tokens.iter().map(String::as_str);
        texts.zip(of.kinds.iter().map(kind))
    }
    let pairs = tokens(expected, kind).zip(tokens(found, kind));
    let mut pairs = pairs.enumerate();
    if let Some((id, (expected, found))) = pairs.find(|(_, (one, other))| one != other) {
        return Err(ExportError::Differs {
            what: format!("token {id}"),
            expected: format!("{expected:?}"),
            found: format!("{found:?}"),
        });
    }
    let numbers = |of: &Vocabulary| (of.tokens.len(), of.add_bos, of.add_eos, of.add_space_prefix);
    let (expected, found) = (numbers(expected), numbers(found));
    if expected == found {
        Ok(())
    } else {
        Err(ExportError::Differs {
            what: "the vocabulary".to_owned(),
            expected: format!("{expected:?}"),
            found: format!("{found:?}"),
        })
    }
}

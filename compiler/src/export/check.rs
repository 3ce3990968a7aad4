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

/// The container of an exported vocabulary.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Container {
    Gguf,
    Folder,
}

/// A folder cannot mark tokens as unused, which become normal ones, or several tokens as unknown,
/// which become control tokens. A GGUF lacks rules that are reported as lost, and has spaces in
/// user-defined tokens.
pub(super) fn compare_vocabularies(
    expected: &Vocabulary,
    found: &Vocabulary,
    container: Container,
) -> Result<(), ExportError> {
    let kind = |kind: &TokenKind| match kind {
        TokenKind::Unused => TokenKind::Normal,
        TokenKind::Unknown => TokenKind::Control,
        kind => *kind,
    };
    let texts = match container {
        Container::Gguf => &expected.tokens_in_gguf(),
        Container::Folder => &expected.tokens,
    };
    let tokens = texts.iter().zip(expected.kinds.iter().map(kind));
    let pairs = tokens.zip(found.tokens.iter().zip(found.kinds.iter().map(kind)));
    let mut pairs = pairs.enumerate();
    if let Some((id, (expected, found))) = pairs.find(|(_, (one, other))| one != other) {
        return Err(ExportError::Differs {
            what: format!("token {id}"),
            expected: format!("{expected:?}"),
            found: format!("{found:?}"),
        });
    }
    let common = |of: &Vocabulary| {
        let flags = (of.add_bos, of.add_eos, of.add_space_prefix);
        format!("{:?}", (of.tokens.len(), flags))
    };
    let rules = |of: &Vocabulary| {
        let spaces = (
            of.space_prefix_once,
            of.space_prefix_if_absent,
            of.split_before_spaces,
        );
        let matched = of.match_normalized.len();
        format!("{:?}", (common(of), spaces, of.normalization, matched))
    };
    let (expected, found) = match container {
        Container::Gguf => (common(expected), common(found)),
        Container::Folder => (rules(expected), rules(found)),
    };
    if expected == found {
        Ok(())
    } else {
        Err(ExportError::Differs {
            what: "the vocabulary".to_owned(),
            expected,
            found,
        })
    }
}

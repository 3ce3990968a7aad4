//! Checks that an exported model reads as the artifact does.

use htc_formats::architecture::Naming;
use htc_formats::escape::escape_truncated;
use htc_formats::model::{HyperParameters, RopePairs};
use htc_formats::vocab::{TokenKind, UnicodeForm, Vocabulary};
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
/// which become control tokens. A GGUF lacks rules that are reported as lost, and has spaces in
/// user-defined tokens.
pub(super) fn compare_vocabularies(
    expected: &Vocabulary,
    found: &Vocabulary,
    container: Naming,
) -> Result<(), ExportError> {
    let kind = |kind: &TokenKind| match kind {
        TokenKind::Unused => TokenKind::Normal,
        TokenKind::Unknown => TokenKind::Control,
        kind => *kind,
    };
    let texts = match container {
        Naming::Gguf => &expected.tokens_in_gguf(),
        Naming::HuggingFace => &expected.tokens,
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
    let pairs = rules(expected, container)
        .into_iter()
        .zip(rules(found, container));
    for ((name, expected), (_, found)) in pairs {
        if expected != found {
            return Err(ExportError::Differs {
                what: format!("{name} of the vocabulary"),
                expected: escape_truncated(&expected),
                found: escape_truncated(&found),
            });
        }
    }
    Ok(())
}

/// Returns the rules that a container states of a vocabulary, by name.
fn rules(of: &Vocabulary, container: Naming) -> Vec<(&'static str, String)> {
    let mut rules = vec![
        ("number of tokens", of.tokens.len().to_string()),
        ("add_bos", of.add_bos.to_string()),
        ("add_eos", of.add_eos.to_string()),
        ("add_space_prefix", of.add_space_prefix.to_string()),
    ];
    if container == Naming::HuggingFace {
        // An artifact may have any order, and an id twice.
        let mut normalized = of.match_normalized.clone();
        normalized.sort_unstable();
        normalized.dedup();
        let form = of.normalization.map_or("none", UnicodeForm::name);
        rules.extend([
            ("space_prefix_once", of.space_prefix_once.to_string()),
            (
                "space_prefix_if_absent",
                of.space_prefix_if_absent.to_string(),
            ),
            ("split_before_spaces", of.split_before_spaces.to_string()),
            ("normalization", form.to_owned()),
            (
                "match_normalized",
                format!("{} ids, {normalized:?}", normalized.len()),
            ),
        ]);
    }
    rules
}

#[cfg(test)]
mod tests;

//! Special tokens, and their addition around a text.

use super::json::{Component, ComponentStep, TemplatePiece, TokenIds, TokenName, TokenizerConfig};
use super::pre_tokenizer::map_steps;
use super::unsupported_json;
use crate::vocab::{Vocabulary, VocabularyError};

/// Sources of BOS, EOS and the unknown token, by text and by id, in order of precedence.
pub(super) struct SpecialTokenSources<'a> {
    /// `tokenizer_config.json` and `special_tokens_map.json`.
    pub(super) names: [&'a TokenizerConfig; 2],
    /// BOS and EOS of `config.json`, of its text part, and of `generation_config.json`.
    pub(super) ids: [(Option<&'a TokenIds>, Option<&'a TokenIds>); 3],
}

impl SpecialTokenSources<'_> {
    pub(super) fn set_special_tokens(
        &self,
        vocabulary: &mut Vocabulary,
    ) -> Result<(), VocabularyError> {
        let named = |which: &'static str, names: [Option<&TokenName>; 2]| {
            let mut names = names.into_iter().flatten();
            let Some(name) = names.find(|name| !name.text().is_empty()) else {
                return Ok(None);
            };
            let mut texts = (0..).zip(&vocabulary.tokens);
            match texts.find(|(_, text)| *text == name.text()) {
                Some((id, _)) => Ok(Some(id)),
                None => Err(VocabularyError::SpecialName {
                    which,
                    name: name.text().to_owned(),
                }),
            }
        };
        let [config, map] = self.names;
        let names = |of: fn(&TokenizerConfig) -> Option<&TokenName>| [of(config), of(map)];
        let bos = named("BOS", names(|names| names.bos_token.as_ref()))?;
        let eos = named("EOS", names(|names| names.eos_token.as_ref()))?;
        let unknown = named("unknown", names(|names| names.unk_token.as_ref()))?;
        let first = |list: Option<&TokenIds>| list.and_then(|ids| ids.list().first().copied());
        let bos_id = self.ids.iter().find_map(|(bos, _)| first(*bos));
        let eos_id = self.ids.iter().find_map(|(_, eos)| first(*eos));
        vocabulary.bos = bos.or(bos_id).or(vocabulary.bos);
        vocabulary.eos = eos.or(eos_id).or(vocabulary.eos);
        vocabulary.unknown = unknown.or(vocabulary.unknown);

        let lists = self.ids.iter().filter_map(|(_, eos)| *eos);
        let mut ends: Vec<u32> = lists.flat_map(TokenIds::list).copied().collect();
        ends.retain(|&id| Some(id) != vocabulary.eos);
        ends.sort_unstable();
        ends.dedup();
        vocabulary.end_of_generation = ends;
        Ok(())
    }
}

/// Returns the flags for adding BOS before and EOS after a text, as given by a post-processor;
/// `None` if it states neither. The tokens it adds serve as BOS or EOS if no other file names them.
pub(super) fn post_process(
    processor: &Component,
    vocabulary: &mut Vocabulary,
) -> Result<(Option<bool>, Option<bool>), VocabularyError> {
    let templates = map_steps(processor, template, template);
    let refuse =
        |found: &str, supported: &str| Err(unsupported_json("post_processor", found, supported));
    let tokens = &vocabulary.tokens;
    let is = |id: &mut Option<u32>, token: &TemplateText| {
        let named = || {
            let mut texts = (0..).zip(tokens);
            texts
                .find(|(_, text)| **text == token.text)
                .map(|(id, _)| id)
        };
        *id = id.or_else(named);
        let Some(id) = *id else { return false };
        let inserts = token.ids.as_ref().is_none_or(|ids| *ids == [id]);
        inserts && tokens.get(id as usize) == Some(&token.text)
    };
    let (own_bos, own_eos) = (&mut vocabulary.bos, &mut vocabulary.eos);
    let mut puts = (None, None);
    for (kind, pieces) in templates {
        match kind.as_str() {
            "ByteLevel" => {}
            "TemplateProcessing" => match pieces.as_slice() {
                [None] => {}
                _ if puts != (None, None) => return refuse("two templates", "one"),
                [Some(bos), None] if is(own_bos, bos) => puts.0 = Some(true),
                [None, Some(eos)] if is(own_eos, eos) => puts.1 = Some(true),
                [Some(bos), None, Some(eos)] if is(own_bos, bos) && is(own_eos, eos) => {
                    puts = (Some(true), Some(true));
                }
                _ => {
                    let names = pieces.iter().map(|piece| match piece {
                        Some(TemplateText { text, ids: None }) => text.clone(),
                        Some(TemplateText { text, ids }) => {
                            format!("{text} {:?}", ids.as_deref().unwrap_or_default())
                        }
                        None => "$A".to_owned(),
                    });
                    let found = names.collect::<Vec<_>>().join(" ");
                    return refuse(&found, "BOS before and EOS after a text, with their ids");
                }
            },
            other => return refuse(other, "ByteLevel, TemplateProcessing"),
        }
    }
    Ok(puts)
}

/// Special token that a template inserts, and the ids that it states for it.
struct TemplateText {
    text: String,
    ids: Option<Vec<u32>>,
}

/// Returns the kind of a processor, and what its template puts around a text, which is `None`.
fn template<P>(part: &ComponentStep<P>) -> (String, Vec<Option<TemplateText>>) {
    let known = part.special_tokens.iter().flat_map(|tokens| &tokens.0);
    let ids = |name: &String| {
        let mut known = known.clone();
        let found = known.find(|(token, _)| token == name);
        found.map(|(_, token)| token.ids.0.clone())
    };
    let pieces = part.single.iter().flat_map(|pieces| &pieces.0);
    let pieces = pieces.map(|piece| match piece {
        TemplatePiece::SpecialToken { id } => Some(TemplateText {
            text: id.clone(),
            ids: ids(id),
        }),
        TemplatePiece::Sequence {} => None,
    });
    (part.kind.clone(), pieces.collect())
}

//! Rules for text in a `tokenizer.json`: `normalizer`, `pre_tokenizer` and `decoder`. A rule is
//! read exactly or refused by name.

use super::json::{Component, ComponentStep, Pattern, TokenizerJson};
use super::pre_tokenizer::{self, describe_component, map_steps};
use super::unsupported_json;
use crate::vocab::{BYTE_LEVEL, SENTENCE_PIECE, SPACE, UnicodeForm, Vocabulary, VocabularyError};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Normalizer {
    Form(UnicodeForm),
    /// Puts U+2581 before a text.
    Prepend,
    /// Replaces spaces by U+2581.
    ReplaceSpaces,
    /// Strips whitespace at both ends.
    Strip,
    /// Replaces runs of spaces by one.
    CollapseSpaces,
}

use Normalizer::{CollapseSpaces, Form, Prepend, ReplaceSpaces, Strip};

/// Returns an empty vocabulary with the rules of the file. `collapses` states that
/// `tokenizer.model` collapses runs of spaces, which [`HuggingFaceFiles::from_vocabulary`] writes
/// as `Strip` and `Replace`.
///
/// [`HuggingFaceFiles::from_vocabulary`]: super::HuggingFaceFiles::from_vocabulary
pub(super) fn read(
    tokenizer: &TokenizerJson,
    collapses: bool,
) -> Result<Vocabulary, VocabularyError> {
    let TokenizerJson {
        normalizer,
        pre_tokenizer,
        decoder,
        model,
        ..
    } = tokenizer;
    let (normalizer, pre) = (normalizer.as_ref(), pre_tokenizer.as_ref());
    let vocabulary = match pre.filter(|component| pre_tokenizer::is_byte_level(component)) {
        Some(component) => Vocabulary {
            model: BYTE_LEVEL.to_owned(),
            pre: Some(pre_tokenizer::byte_level(component, model.ignore_merges)?),
            normalization: byte_level_form(normalizer)?,
            ..Vocabulary::default()
        },
        None if !model.byte_fallback => {
            let supported = "ByteLevel, or a model with byte_fallback";
            let found = describe_component(pre);
            return Err(unsupported_json("pre_tokenizer", found, supported));
        }
        None if model.ignore_merges => {
            let found = "true for a model with byte_fallback";
            return Err(unsupported_json("model.ignore_merges", found, "false"));
        }
        None => sentence_piece(normalizer, pre, collapses)?,
    };
    check_decoder(decoder.as_ref(), &vocabulary)?;
    Ok(vocabulary)
}

fn normalizers(component: Option<&Component>) -> Option<Vec<Normalizer>> {
    let Some(component) = component else {
        return Some(Vec::new());
    };
    map_steps(component, normalizer_of, normalizer_of)
        .into_iter()
        .collect()
}

fn normalizer_of<P>(step: &ComponentStep<P>) -> Option<Normalizer> {
    let content = step.content.as_deref();
    match (step.kind.as_str(), &step.pattern) {
        ("Prepend", None) => (step.prepend.as_deref() == Some(SPACE)).then_some(Prepend),
        ("Replace", Some(Pattern::String(space))) if space == " " => {
            (content == Some(SPACE)).then_some(ReplaceSpaces)
        }
        ("Replace", Some(Pattern::Regex(spaces))) if spaces == " {2,}" => {
            (content == Some(" ")).then_some(CollapseSpaces)
        }
        ("Strip", None) => {
            let both = step.strip_left == Some(true) && step.strip_right == Some(true);
            both.then_some(Strip)
        }
        (kind, None) => UnicodeForm::from_name(kind).map(Form),
        _ => None,
    }
}

fn byte_level_form(normalizer: Option<&Component>) -> Result<Option<UnicodeForm>, VocabularyError> {
    match normalizers(normalizer).as_deref() {
        Some([]) => Ok(None),
        Some([Form(form)]) => Ok(Some(*form)),
        _ => {
            let found = describe_component(normalizer);
            let supported = "none, NFC, NFD, NFKC, NFKD";
            Err(unsupported_json("normalizer", found, supported))
        }
    }
}

fn sentence_piece(
    normalizer: Option<&Component>,
    pre_tokenizer: Option<&Component>,
    collapses: bool,
) -> Result<Vocabulary, VocabularyError> {
    let refused = || {
        let normalizer = describe_component(normalizer);
        let pre_tokenizer = describe_component(pre_tokenizer);
        let found = format!("{normalizer} and {pre_tokenizer}");
        let supported = "after an optional Unicode form, Prepend and Replace of a space by U+2581, or Metaspace with U+2581";
        unsupported_json("normalizer and pre_tokenizer", found, supported)
    };
    let steps = normalizers(normalizer).ok_or_else(refused)?;
    let (form, steps) = match steps.as_slice() {
        [Form(form), rest @ ..] => (Some(*form), rest),
        all => (None, all),
    };
    let (collapse_spaces, steps) = match steps {
        [Strip, CollapseSpaces, rest @ ..] if collapses && form.is_none() => (true, rest),
        all => (false, all),
    };
    let mut vocabulary = Vocabulary {
        model: SENTENCE_PIECE.to_owned(),
        normalization: form,
        collapse_spaces,
        ..Vocabulary::default()
    };
    match (steps, pre_tokenizer) {
        ([Prepend, ReplaceSpaces] | [ReplaceSpaces, Prepend], None) => {
            vocabulary.add_space_prefix = true;
        }
        ([ReplaceSpaces], None) => {}
        ([ReplaceSpaces], Some(component)) if splits_at_spaces(component) => {}
        ([], Some(component)) => {
            let (scheme, split) = metaspace(component).ok_or_else(refused)?;
            vocabulary.split_before_spaces = split;
            vocabulary.add_space_prefix = scheme != Scheme::Never;
            vocabulary.space_prefix_once = scheme == Scheme::First;
            vocabulary.space_prefix_if_absent = scheme == Scheme::Always;
        }
        _ => return Err(refused()),
    }
    Ok(vocabulary)
}

/// Splits nothing, because the normaliser has replaced all spaces.
fn splits_at_spaces(component: &Component) -> bool {
    component.kind == "Split"
        && component.invert != Some(true)
        && matches!(&component.pattern, Some(Pattern::String(space)) if space == " ")
}

#[derive(Clone, Copy, PartialEq)]
enum Scheme {
    Always,
    First,
    Never,
}

/// Returns where a space is put, and whether the text is split at spaces. Missing entries have the
/// defaults of `tokenizers`.
fn metaspace(component: &Component) -> Option<(Scheme, bool)> {
    if component.kind != "Metaspace" || component.replacement.as_deref() != Some(SPACE) {
        return None;
    }
    let scheme = match (
        component.prepend_scheme.as_deref(),
        component.add_prefix_space,
    ) {
        (None | Some("never"), Some(false)) | (Some("never"), _) => Scheme::Never,
        (_, Some(false)) => return None,
        (None | Some("always"), _) => Scheme::Always,
        (Some("first"), _) => Scheme::First,
        _ => return None,
    };
    Some((scheme, component.split.unwrap_or(true)))
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Decoder {
    ByteLevel,
    /// Replaces U+2581 by spaces.
    Spaces,
    ByteFallback,
    Fuse,
    /// Strips one space before a text.
    StripFirstSpace,
}

/// A missing decoder says nothing. Any other must give the text that the tokenizer here decodes.
fn check_decoder(
    decoder: Option<&Component>,
    vocabulary: &Vocabulary,
) -> Result<(), VocabularyError> {
    let Some(decoder) = decoder else {
        return Ok(());
    };
    let steps = map_steps(decoder, decoder_of, decoder_of);
    let steps: Option<Vec<Decoder>> = steps.into_iter().collect();
    let (known, supported): (&[Decoder], _) = if vocabulary.model == BYTE_LEVEL {
        (&[Decoder::ByteLevel], "ByteLevel")
    } else if vocabulary.add_space_prefix {
        (
            &[
                Decoder::Spaces,
                Decoder::ByteFallback,
                Decoder::Fuse,
                Decoder::StripFirstSpace,
            ],
            "Replace of U+2581 by a space, ByteFallback, Fuse, Strip of the space before a text",
        )
    } else {
        (
            &[Decoder::Spaces, Decoder::ByteFallback, Decoder::Fuse],
            "Replace of U+2581 by a space, ByteFallback, Fuse (no space is put before a text)",
        )
    };
    if steps.as_deref() == Some(known) {
        return Ok(());
    }
    let found = describe_component(Some(decoder));
    Err(unsupported_json("decoder", found, supported))
}

fn decoder_of<P>(step: &ComponentStep<P>) -> Option<Decoder> {
    let content = step.content.as_deref();
    match (step.kind.as_str(), &step.pattern) {
        ("Replace", Some(Pattern::String(space))) => {
            (space == SPACE && content == Some(" ")).then_some(Decoder::Spaces)
        }
        ("Strip", None) => {
            let is_first = (content, step.start, step.stop) == (Some(" "), Some(1), Some(0));
            is_first.then_some(Decoder::StripFirstSpace)
        }
        // These have no parameters that change the text.
        ("ByteLevel", None) => Some(Decoder::ByteLevel),
        ("ByteFallback", None) => Some(Decoder::ByteFallback),
        ("Fuse", None) => Some(Decoder::Fuse),
        _ => None,
    }
}

/// Returns the first byte-level character, as in GPT-2's table, that `has` is false for.
pub(super) fn missing_byte(mut has: impl FnMut(char) -> bool) -> Option<char> {
    let printable = ('!'..='~').chain('¡'..='¬').chain('®'..='ÿ');
    let mut all = printable.chain('\u{100}'..='\u{143}');
    all.find(|&character| !has(character))
}

//! Scores of `tokenizer.model` for the vocabulary of a `tokenizer.json`.

use std::collections::{HashMap, HashSet};

use super::base::ADDED_SCORE;
use crate::vocab::splits::all_splits;
use crate::vocab::{TokenKind, Vocabulary};

/// A merge that scores imply.
#[derive(Clone, Copy)]
pub(super) struct ScoredMerge {
    pub(super) pair: (u32, u32),
    /// Token that the pair makes, and its score.
    result: u32,
    score: f32,
    /// Characters of both parts.
    lengths: (usize, usize),
}

/// Returns all pairs of tokens that make a third one, in the order of transformers: the best score
/// first, then the longest parts; `None` if there are more than `most`. `tokens` are ids, texts and
/// scores.
pub(super) fn merges(tokens: &[(u32, &str, f32)], most: usize) -> Option<Vec<ScoredMerge>> {
    let texts: Vec<&str> = tokens.iter().map(|&(_, text, _)| text).collect();
    let lengths: Vec<usize> = texts.iter().map(|text| text.chars().count()).collect();
    let mut merges = Vec::new();
    let few = all_splits(&texts, |index, left, right| {
        let (result, _, score) = tokens[index];
        merges.push(ScoredMerge {
            pair: (tokens[left].0, tokens[right].0),
            result,
            score,
            lengths: (lengths[left], lengths[right]),
        });
        merges.len() <= most
    });
    if !few {
        return None;
    }
    merges.sort_by(|one, other| {
        let order = other.score.total_cmp(&one.score);
        let order = order.then_with(|| other.lengths.cmp(&one.lengths));
        order.then_with(|| (one.result, one.pair).cmp(&(other.result, other.pair)))
    });
    Some(merges)
}

/// Replaces the merges of a vocabulary by the scores of `pieces` if both give the same tokens, and
/// takes what the pieces say beyond `tokenizer.json`: kinds of special tokens, and which are BOS,
/// EOS and the unknown token.
pub(super) fn take(vocabulary: &mut Vocabulary, pieces: &Vocabulary) {
    let special = |kind: TokenKind| !matches!(kind, TokenKind::Normal | TokenKind::Unused);
    let mut scores = vec![ADDED_SCORE; vocabulary.tokens.len()];
    let known = pieces.tokens.iter().zip(&pieces.kinds).zip(&pieces.scores);
    let own = vocabulary.tokens.iter().zip(&mut vocabulary.kinds);
    for (((piece, &piece_kind), &piece_score), ((text, kind), score)) in
        known.zip(own.zip(&mut scores))
    {
        // A piece that is matched in the text has spaces.
        let same = piece == text || *piece == text.replace('\u{2581}', " ");
        if same && (special(piece_kind) || !special(*kind)) {
            *score = piece_score;
            match (piece_kind, &kind) {
                (TokenKind::Unknown, TokenKind::Control)
                | (TokenKind::Unused, TokenKind::Normal) => *kind = piece_kind,
                _ => {}
            }
        }
    }
    if merges_are(&scores, vocabulary) {
        vocabulary.scores = scores;
        vocabulary.merges = Vec::new();
    }
    let Vocabulary {
        bos,
        eos,
        unknown,
        add_bos,
        ..
    } = *pieces;
    vocabulary.bos = bos;
    vocabulary.eos = eos;
    vocabulary.unknown = unknown.or(vocabulary.unknown);
    vocabulary.add_bos = add_bos;
}

/// Returns true if merging by scores gives the same tokens as the merges: both name the same pairs,
/// in an order in which no two results have the same score.
///
/// Runs of one character of all lengths may have the same score, as the spaces of Llama have, if
/// longer parts come first: by scores as by merges, the left-most run grows until it is complete.
fn merges_are(scores: &[f32], vocabulary: &Vocabulary) -> bool {
    let literal = |(text, kind): (&String, &TokenKind)| {
        *kind == TokenKind::UserDefined && text.contains('\u{2581}')
    };
    let Vocabulary { tokens, kinds, .. } = vocabulary;
    if tokens.iter().zip(kinds).any(literal) {
        return false;
    }
    let scored = (0..).zip(tokens).zip(scores);
    let scored: Vec<_> = scored
        .map(|((id, text), &score)| (id, text.as_str(), score))
        .collect();
    let Some(implied) = merges(&scored, vocabulary.merges.len()) else {
        return false;
    };
    let texts: HashSet<&str> = tokens.iter().map(String::as_str).collect();
    let grows = |text: &str| {
        let mut characters = text.chars();
        let last = characters.next_back();
        let shorter = characters.as_str();
        shorter.chars().all(|one| Some(one) == last) && texts.contains(shorter)
    };
    // Once for each token, which any number of merges can make.
    let growing: HashSet<u32> = (0..)
        .zip(tokens)
        .filter_map(|(id, text)| grows(text).then_some(id))
        .collect();
    let mut implied: HashMap<(u32, u32), ScoredMerge> = implied
        .into_iter()
        .map(|merge| (merge.pair, merge))
        .collect();
    let mut last: Option<ScoredMerge> = None;
    for pair in &vocabulary.merges {
        let Some(merge) = implied.remove(pair) else {
            return false;
        };
        let ordered = last.is_none_or(|last| {
            last.result == merge.result
                || merge.score < last.score
                || merge.score == last.score
                    && merge.lengths < last.lengths
                    && growing.contains(&merge.result)
                    && growing.contains(&last.result)
        });
        if !ordered {
            return false;
        }
        last = Some(merge);
    }
    implied.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_merges_is_limited() {
        let tokens = [(7, "aaa", 0.0), (8, "a", 0.0), (9, "aa", 1.0)];
        let found = merges(&tokens, 3).unwrap_or_default();
        let pairs: Vec<(u32, u32)> = found.iter().map(|merge| merge.pair).collect();
        assert_eq!(pairs, [(8, 8), (9, 8), (8, 9)]);
        assert!(merges(&tokens, 2).is_none());
    }
}

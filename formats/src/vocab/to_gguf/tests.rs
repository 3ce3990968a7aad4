use super::*;
use crate::vocab::{SENTENCE_PIECE, TokenKind};

fn merged(tokens: &[&str], merges: &[(u32, u32)]) -> Vocabulary {
    Vocabulary {
        model: SENTENCE_PIECE.to_owned(),
        tokens: tokens.iter().map(|&token| token.to_owned()).collect(),
        kinds: vec![TokenKind::Normal; tokens.len()],
        merges: merges.to_vec(),
        ..Vocabulary::default()
    }
}

#[test]
fn merges_become_scores_if_equivalent() {
    let tokens = ["a", "b", "c", "bc", "ab", "abc"];
    let complete = merged(&tokens, &[(1, 2), (0, 1), (0, 3), (4, 2)]);
    assert!(complete.merges_are_scores());
    assert_eq!(
        complete.scores_from_merges(),
        [-4.0, -4.0, -4.0, 0.0, -1.0, -2.0]
    );
    let partial = merged(&tokens, &[(1, 2), (0, 1), (0, 3)]);
    assert!(!partial.merges_are_scores());
    assert_eq!(partial.properties_lost_in_gguf().len(), 2);
    let torn = merged(&tokens, &[(1, 2), (0, 3), (0, 1), (4, 2)]);
    assert!(!torn.merges_are_scores());
}

#[test]
fn merges_of_user_defined_runs_of_spaces_need_no_scores() {
    let merges = [(0, 0), (2, 0), (0, 1)];
    let mut runs = merged(&["▁", "a", "  ", "   ", "▁a"], &merges);
    runs.kinds[2] = TokenKind::UserDefined;
    runs.kinds[3] = TokenKind::UserDefined;
    let made: Vec<u32> = runs.merged_tokens().into_iter().flatten().collect();
    assert_eq!(made, [2, 3, 4]);
    assert!(runs.merges_are_scores());
    runs.merges.push((4, 1));
    assert!(!runs.merges_are_scores(), "the result is no token");
}

//! Pre-tokenizers: splitting of a text into words for byte-level merging.
//!
//! Each of the regular expressions in use is implemented as a function in linear time. Each stage
//! of a pre-tokenizer splits the pieces of the previous one into matches and the text between.

mod class;
mod expressions;

use htc_formats::vocab::PreTokenizer;

use expressions::{
    cjk, cjk_and_kana, deep_seek_v3, gpt_2, gpt_4o, letters_deep_seek_llm, line_end, llama_3,
    number, numbers, punctuation, punctuation_deep_seek_llm, spaced_letters, tekken, three_numbers,
};

enum Stage {
    /// Returns the number of bytes matched at the start of a text.
    Matches(fn(&str) -> Option<usize>),
    /// `\s+$`
    TrailingSpace,
}

use Stage::{Matches, TrailingSpace};

fn stages(pre: PreTokenizer) -> &'static [Stage] {
    match pre {
        PreTokenizer::Gpt2 => &[Matches(gpt_2)],
        PreTokenizer::StarCoder => &[Matches(number), Matches(gpt_2)],
        PreTokenizer::Llama3 | PreTokenizer::Dbrx => &[Matches(|text| llama_3(text, 3))],
        PreTokenizer::Qwen2 => &[Matches(|text| llama_3(text, 1))],
        PreTokenizer::DeepSeekLlm => &[
            Matches(line_end),
            Matches(letters_deep_seek_llm),
            Matches(punctuation_deep_seek_llm),
            TrailingSpace,
            Matches(cjk),
            Matches(numbers),
        ],
        PreTokenizer::DeepSeekCoder => &[
            Matches(line_end),
            Matches(spaced_letters),
            Matches(punctuation),
            Matches(cjk),
            Matches(number),
        ],
        PreTokenizer::DeepSeekV3 => &[
            Matches(three_numbers),
            Matches(cjk_and_kana),
            Matches(deep_seek_v3),
        ],
        PreTokenizer::Gpt4o => &[Matches(gpt_4o)],
        PreTokenizer::Tekken => &[Matches(tekken)],
    }
}

/// Calls `word` with every word of `text`, in order; their concatenation is the text.
pub(super) fn for_each_word(pre: PreTokenizer, text: &str, word: &mut dyn FnMut(&str)) {
    cut(stages(pre), text, word);
}

fn cut(stages: &[Stage], piece: &str, word: &mut dyn FnMut(&str)) {
    if piece.is_empty() {
        return;
    }
    let Some((stage, next)) = stages.split_first() else {
        return word(piece);
    };
    match stage {
        TrailingSpace => {
            let (before, space) = piece.split_at(piece.trim_end().len());
            cut(next, before, word);
            cut(next, space, word);
        }
        Matches(matched) => {
            let (mut done, mut at) = (0, 0);
            while let Some(character) = piece[at..].chars().next() {
                match matched(&piece[at..]) {
                    None => at += character.len_utf8(),
                    Some(len) => {
                        cut(next, &piece[done..at], word);
                        cut(next, &piece[at..at + len], word);
                        at += len;
                        done = at;
                    }
                }
            }
            cut(next, &piece[done..], word);
        }
    }
}

#[cfg(test)]
mod tests;

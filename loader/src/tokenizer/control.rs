//! Tokens whose text says that they are control tokens, whatever kind the file gives them.
//!
//! Converters have marked the tokens that end a turn, and those that frame an infilling prompt, as
//! user-defined or even normal. llama.cpp therefore knows them by name; generation has to stop at
//! the same tokens and a prompt has to be cut at the same places.

/// Whether a token of this text ends a generated text.
pub(super) fn ends_text(text: &str) -> bool {
    matches!(
        text,
        "</s>"
            | "<eos>"
            | "[EOS]"
            | "<EOT>"
            | "_<EOT>"
            | "[EOT]"
            | "<|end|>"
            | "<|endoftext|>"
            | "<|end_of_text|>"
            | "<|eot_id|>"
            | "<|eom_id|>"
            | "<|im_end|>"
            | "<|return|>"
            | "<|call|>"
            | "<|calls|>"
            | "<|flush|>"
            | "<|tool_response>"
            | "<turn|>"
            | "<end_of_turn>"
            | "<end_of_utterance>"
            | "<｜end▁of▁sentence｜>"
            | "[e~["
            // Padding and file separators of infilling end the middle part.
            | "<|fim_pad|>"
            | "<fim-pad>"
            | "<fim_pad>"
            | "<PAD>"
            | "[PAD]"
            | "<|fim_repo|>"
            | "<|repo_name|>"
            | "<fim-repo>"
            | "<REPO>"
            | "<reponame>"
            | "<|file_sep|>"
    )
}

/// Whether a token of this text frames an infilling prompt: prefix, suffix or middle.
pub(super) fn marks_infill(text: &str) -> bool {
    matches!(
        text,
        "<|fim_prefix|>"
            | "<fim-prefix>"
            | "<fim_prefix>"
            | "<｜fim▁begin｜>"
            | "<PRE>"
            | "▁<PRE>"
            | "<|code_prefix|>"
            | "<|prefix|>"
            | "<|fim_suffix|>"
            | "<fim-suffix>"
            | "<fim_suffix>"
            | "<｜fim▁hole｜>"
            | "<SUF>"
            | "▁<SUF>"
            | "<|code_suffix|>"
            | "<|suffix|>"
            | "<|fim_middle|>"
            | "<fim-middle>"
            | "<fim_middle>"
            | "<｜fim▁end｜>"
            | "<MID>"
            | "▁<MID>"
            | "<|code_middle|>"
            | "<|middle|>"
    )
}

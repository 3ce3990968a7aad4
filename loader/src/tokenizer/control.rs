//! Control tokens recognised by their text, regardless of the kind in the file.
//!
//! Some converters marked end-of-turn and infilling tokens as user-defined or normal. llama.cpp
//! therefore recognises them by name; this module uses the same names.

/// Returns true if a token of this text ends generation.
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
            // Infilling padding and file separators end the middle part.
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

/// Returns true if a token of this text is an infilling marker: prefix, suffix or middle.
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

//! Control tokens recognised by their text with the names that llama.cpp uses, because some
//! converters marked them as user-defined or normal.

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

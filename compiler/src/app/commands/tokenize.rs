//! `htc tokenize`.

use htc_formats::vocab::Vocabulary;
use htc_loader::tokenizer::{AddSpecialTokens, Tokenizer};
use schemars::JsonSchema;
use serde::Serialize;

use super::{Failure, InFile as _, Opened, open_container, print_json};
use crate::app::cli::TokenizeArgs;
use crate::system::show::format_count;
use crate::system::text;

#[derive(JsonSchema, Serialize)]
/// Ids of a text.
pub(super) struct Tokens {
    tokens: Vec<u32>,
}

pub(super) fn execute(args: &TokenizeArgs) -> Result<(), Failure> {
    // A GGUF with a vocabulary alone is valid here.
    let vocabulary = match open_container(&args.model)? {
        Opened::Htz(artifact) => artifact
            .vocabulary()
            .map_err(|fault| fault.in_file(&args.model))?,
        Opened::Gguf(gguf) => Vocabulary::from_gguf(&gguf).in_file(&args.model)?,
        Opened::Folder(folder) => Vocabulary::from_hugging_face(&folder).in_file(&folder)?,
    };
    let tokenizer = Tokenizer::new(vocabulary).in_file(&args.model)?;
    let text = text::read(&args.text)?;
    let tokens = if args.special {
        tokenizer.encode_with_special(&text, AddSpecialTokens::AsConfigured)
    } else {
        tokenizer.encode(&text, AddSpecialTokens::AsConfigured)
    };
    if args.json {
        return print_json(&Tokens { tokens });
    }
    // Reduces system calls.
    for some in tokens.chunks(1 << 12) {
        let lines = some.iter().map(|&token| {
            let piece = tokenizer.piece(token).unwrap_or_default();
            format!("{token:>8}  {piece:?}")
        });
        say!("{}", lines.collect::<Vec<_>>().join("\n"));
    }
    say!("{}", format_count(tokens.len(), "token"));
    Ok(())
}

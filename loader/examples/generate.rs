//! Continues a prompt.
//!
//! `cargo run --release -p htc-loader --example generate -- MODEL PROMPT [TOKENS]`

use std::error::Error;
use std::io::{self, Write};

use htc_loader::generate::{GenerateLimits, Generator};
use htc_loader::sampling::Sampler;
use htc_loader::tokenizer::AddSpecialTokens;
use htc_loader::{Cpu, Model, Session};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, prompt, rest @ ..] = &arguments[..] else {
        return Err("usage: generate MODEL PROMPT [TOKENS]".into());
    };
    let limit = match rest.first() {
        Some(tokens) => tokens.parse()?,
        None => 64,
    };

    let model = Model::open(path)?;
    let tokenizer = model.tokenizer()?;
    let prompt = tokenizer.encode(prompt, AddSpecialTokens::Prompt);
    let mut session = Session::new(model, Cpu::with_threads(2)?, prompt.len() + limit)?;

    let (mut sampler, limits) = (Sampler::greedy(), GenerateLimits::tokens(limit));
    let mut generator = Generator::new(&mut session, &tokenizer, &mut sampler, &prompt, limits)?;
    let mut out = io::stdout().lock();
    while let Some(written) = generator.step()? {
        write!(out, "{}", written.text)?;
        out.flush()?;
    }
    let (rest, summary) = generator.finish();
    writeln!(out, "{rest}")?;
    eprintln!("{} tokens, {:?}", summary.tokens, summary.stop);
    Ok(())
}

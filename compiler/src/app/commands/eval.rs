//! `htc eval`.

use std::path::Path;
use std::sync::Arc;

use htc_loader::{Model, Pool};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::{Failure, open_model, print_json, tokenizer_of};
use crate::app::cli::EvalArgs;
use crate::measure::{self, EvaluateError, Evaluation, Protocol};
use crate::system::show::name_of;
use crate::system::text;

pub(super) fn execute(args: &EvalArgs) -> Result<(), Failure> {
    let model = open_model(&args.model)?;
    let tokenizer = tokenizer_of(&args.model, &model)?;
    let reference = match &args.reference {
        None => None,
        Some(path) => {
            let other = open_model(path)?;
            let other_tokenizer = tokenizer_of(path, &other)?;
            Some((other, other_tokenizer))
        }
    };
    let text = text::read(&args.text)?;
    let context = args.context as usize;
    if context > model.hyper().context {
        say!(
            "htc: warning: --context {context} is beyond the {} positions that {} was trained for",
            model.hyper().context,
            args.model.display(),
        );
    }
    let pool = Arc::new(Pool::new(args.threads.count())?);
    let bar = ProgressBar::no_length();
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} windows, {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let result = measure::evaluate(
        &pool,
        &model,
        &tokenizer,
        reference.as_ref().map(|(m, t)| (m, t)),
        &text,
        Protocol {
            context,
            chunks: args.chunks.map(|n| n as usize),
            kv_type: args.kv.kv_type,
        },
        |done, all| {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
            Ok(())
        },
    );
    bar.finish_and_clear();
    let result = result.map_err(|error| Failure::Evaluate {
        path: match error {
            EvaluateError::TextTooShort(_) => args.text.clone(),
            EvaluateError::Reference(_) => args.reference.clone().unwrap_or_default(),
            _ => args.model.clone(),
        },
        error,
    })?;
    if let Some(asked) = args.chunks.filter(|&n| n as usize > result.chunks) {
        say!(
            "htc: warning: --chunks {asked}: the text holds {} windows",
            result.chunks
        );
    }
    if args.json {
        let file = |path: &Path, model: &Model| FileRecord {
            name: name_of(path),
            bytes: model.file().size(),
        };
        print_json(&Record {
            model: file(&args.model, &model),
            reference: args
                .reference
                .as_deref()
                .zip(reference.as_ref())
                .map(|(path, (other, _))| file(path, other)),
            text: name_of(&args.text),
            evaluation: result,
        })
    } else {
        show(&result, &args.model, args.reference.as_deref());
        Ok(())
    }
}

/// What was measured, beside the numbers: they are to stand alone.
#[derive(Serialize)]
struct Record {
    model: FileRecord,
    #[serde(skip_serializing_if = "Option::is_none")]
    reference: Option<FileRecord>,
    text: String,
    #[serde(flatten)]
    evaluation: Evaluation,
}

/// A model by its name, without its folder, and the bytes of its files.
#[derive(Serialize)]
struct FileRecord {
    name: String,
    bytes: u64,
}

fn show(result: &Evaluation, model: &Path, reference: Option<&Path>) {
    say!(
        "{}: {} windows of {} tokens",
        model.display(),
        result.chunks,
        result.context
    );
    say!(
        "  perplexity, second half of each window   {:.4} ± {:.4}  ({} tokens)",
        result.perplexity,
        result.stderr,
        result.tokens
    );
    say!(
        "  perplexity, all positions                {:.4} ± {:.4}  ({} tokens)",
        result.perplexity_all,
        result.stderr_all,
        result.tokens_all
    );
    if let (Some(d), Some(path)) = (&result.reference, reference) {
        say!("against {}", path.display());
        say!(
            "  perplexity over the reference's {:.4}  {:.4} (95 % interval {:.4} to {:.4})",
            d.reference_perplexity,
            d.perplexity_ratio,
            d.perplexity_ratio - d.perplexity_ratio_ci95,
            d.perplexity_ratio + d.perplexity_ratio_ci95
        );
        say!(
            "  KL divergence                            {:.5} ± {:.5} nats",
            d.kl,
            d.kl_stderr
        );
        say!(
            "  same likeliest token                     {:.2} ± {:.2} %",
            100.0 * d.top1,
            100.0 * d.top1_stderr
        );
    }
    say!("± is one standard error");
}

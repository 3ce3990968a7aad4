//! `htc eval`.

use std::path::Path;
use std::sync::Arc;

use htc_formats::htz::KernelCode;
use htc_loader::backend::PlannedSession;
use htc_loader::device::{DeviceWork, Executor};
use htc_loader::dial::ActiveSetting;
use htc_loader::tokenizer::Tokenizer;
use htc_loader::{Model, Pool};

use super::progress::{self, WINDOWS};
use super::{
    Failure, InFile as _, check_memory, describe_setting, evaluated, on_device,
    open_included_source, open_model, open_tokenizer, print_device_remarks, print_json,
    read_corpus, setting_for_fraction,
};
use crate::app::cli::{Document, EvalArgs, ReferenceModel};
use crate::app::terminal::display_path;
use crate::device::ExecutorDevice;
use crate::measure::{
    self, ActiveBytes, Evaluation, Execution, NamedModel, Protocol, Record, explain_standard_errors,
};
use crate::system::show::{file_name, format_count, format_interval};

pub(super) fn execute(args: &EvalArgs) -> Result<(), Failure> {
    let model = open_model(&args.model)?;
    let tokenizer = open_tokenizer(&args.model, &model)?;
    let setting = setting_for_fraction(&model, args.fraction).in_file(&args.model)?;
    let reference = match &args.reference {
        None => None,
        Some(which) => {
            let other = match which {
                ReferenceModel::Source => open_included_source(&args.model, &model)?,
                ReferenceModel::Model(path) => open_model(path)?,
            };
            let other_tokenizer = open_tokenizer(which.path(), &other)?;
            Some((other, other_tokenizer))
        }
    };
    let text = read_corpus(&args.text)?;
    let context = args.context as usize;
    if context > model.hyper().context {
        say!(
            "htc: warning: --ctx-size {context} is beyond the {} positions that {} was trained for",
            model.hyper().context,
            display_path(&args.model),
        );
    }
    let pool = Arc::new(Pool::new(args.threads.count())?);
    let measuring = EvalWork {
        args,
        pool: &pool,
        model: (&model, &tokenizer),
        reference: reference.as_ref().map(|(m, t)| (m, t)),
        text: &text,
        setting,
    };
    let result = on_device(args.device, &pool, measuring)?;
    check_finite(&result, &args.model)?;
    if let Some(asked) = args.chunks.filter(|&n| n as usize > result.chunks) {
        say!(
            "htc: warning: --chunks {asked}: the text holds {}",
            format_count(result.chunks, "window")
        );
    }
    if args.json {
        let file = |path: &Path, model: &Model| NamedModel {
            name: file_name(path),
            bytes: model.file().size(),
        };
        print_json(
            Document::Evaluation,
            &Record {
                model: file(&args.model, &model),
                reference: args
                    .reference
                    .as_ref()
                    .map(ReferenceModel::path)
                    .zip(reference.as_ref())
                    .map(|(path, (other, _))| file(path, other)),
                text: file_name(&args.text),
                touched: args.fraction.map(|_| ActiveBytes {
                    fraction: model.dial().fraction(setting),
                    bytes: model.dial().active_bytes(setting),
                }),
                evaluation: result,
            },
        )
    } else {
        let which = match (args.chunks, result.chunks) {
            (Some(_), _) => "the first ",
            (None, 1) => "",
            (None, _) => "all ",
        };
        show(
            &result,
            which,
            &args.model,
            args.reference.as_ref().map(ReferenceModel::path),
        )?;
        if args.fraction.is_some() {
            answer!("with {}", describe_setting(&model, setting))?;
        }
        Ok(())
    }
}

/// Checks that the measured numbers are finite. Losses are, but not their exponential.
fn check_finite(result: &Evaluation, model: &Path) -> Result<(), Failure> {
    let own = [
        ("the perplexity", Some(result.perplexity)),
        (
            "the perplexity of all positions",
            Some(result.perplexity_all),
        ),
    ];
    let reference = result.reference.as_ref();
    let compared = [
        (
            "the reference's perplexity",
            reference.map(|distance| distance.reference_perplexity),
        ),
        (
            "the perplexity over the reference's",
            reference.map(|distance| distance.perplexity_ratio),
        ),
        ("the KL divergence", reference.map(|distance| distance.kl)),
    ];
    for (name, value) in own.into_iter().chain(compared) {
        if let Some(value) = value.filter(|value| !value.is_finite()) {
            return Err(Failure::NotFinite {
                path: model.to_owned(),
                name,
                value,
            });
        }
    }
    Ok(())
}

struct EvalWork<'a> {
    args: &'a EvalArgs,
    pool: &'a Arc<Pool>,
    model: (&'a Arc<Model>, &'a Tokenizer),
    reference: Option<(&'a Arc<Model>, &'a Tokenizer)>,
    text: &'a str,
    setting: ActiveSetting,
}

impl DeviceWork for EvalWork<'_> {
    type Outcome = Result<Evaluation, Failure>;

    fn kernels(&self) -> Option<KernelCode> {
        self.model.0.kernels()
    }

    fn sessions(&self) -> Vec<PlannedSession<'_>> {
        let (own, positions) = (self.args.kv.kv, self.args.context as usize);
        let reference = self
            .reference
            .map(|(model, _)| (model, measure::reference_kv_type(own).into()));
        let models = [Some((self.model.0, own)), reference].into_iter().flatten();
        let planned = models.map(|(model, kind)| PlannedSession {
            model,
            positions,
            kind,
        });
        planned.collect()
    }

    fn run<E: Executor>(self, executor: &E) -> Self::Outcome {
        let (args, context) = (self.args, self.args.context as usize);
        if !executor.has_own_memory() {
            check_memory(&args.model, &self.sessions(), args.threads.count())?;
        }
        let bar = progress::bar(WINDOWS);
        let protocol = Protocol {
            context,
            chunks: args.chunks.map(|n| n as usize),
            execution: Execution {
                kv: args.kv.measured(),
                setting: self.setting,
            },
        };
        let result = measure::evaluate(
            &ExecutorDevice::new(executor, self.pool),
            self.model.0,
            self.model.1,
            self.reference,
            self.text,
            protocol,
            |done, all| {
                bar.set_length(all as u64);
                bar.set_position(done as u64);
                Ok(())
            },
        );
        bar.finish_and_clear();
        print_device_remarks(executor);
        let reference = args.reference.as_ref().map(ReferenceModel::path);
        evaluated(
            result,
            [&args.model, reference.unwrap_or(Path::new("")), &args.text],
        )
    }
}

fn show(
    result: &Evaluation,
    which: &str,
    model: &Path,
    reference: Option<&Path>,
) -> Result<(), Failure> {
    // A single window has no error.
    let error = |error: Option<f64>, digits: usize| {
        error.map_or_else(String::new, |error| format!(" ± {error:.digits$}"))
    };
    answer!(
        "{}: {which}{} of {}",
        display_path(model),
        format_count(result.chunks, "window"),
        format_count(result.context, "token")
    )?;
    answer!(
        "  perplexity, second half of each window   {:.4}{}  ({})",
        result.perplexity,
        error(result.stderr, 4),
        format_count(result.tokens, "token")
    )?;
    answer!(
        "  perplexity, all positions                {:.4}{}  ({})",
        result.perplexity_all,
        error(result.stderr_all, 4),
        format_count(result.tokens_all, "token")
    )?;
    if let (Some(d), Some(path)) = (&result.reference, reference) {
        answer!("against {}", display_path(path))?;
        answer!(
            "  perplexity over the reference's {:.4}  {:.4}{}",
            d.reference_perplexity,
            d.perplexity_ratio,
            format_interval(d.perplexity_ratio_interval, 4)
        )?;
        answer!(
            "  the same over all positions              {:.4}{}",
            d.perplexity_ratio_all,
            format_interval(d.perplexity_ratio_all_interval, 4)
        )?;
        answer!(
            "  KL divergence                            {:.5}{} nats",
            d.kl,
            error(d.kl_stderr, 5)
        )?;
        answer!(
            "  same likeliest token                     {:.2}{} %",
            100.0 * d.top1,
            error(d.top1_stderr.map(|error| 100.0 * error), 2)
        )?;
    }
    answer!("{}", explain_standard_errors(result.chunks))
}

//! Online learning of a draft model along a text: acceptance rate, residual of its bases, and their
//! drift, by window.
//!
//! `drift MODEL DRAFT off|oja|gradient[,RATE[,EXPONENT]] WINDOWS TEXT...` drafts with DRAFT the
//! continuation that MODEL samples after the first 64 tokens of each window of every text
//! (temperature 0.8, fixed seed). The next window is then scored with both: the perplexity of the
//! draft on unseen text is given as a ratio to that of the model. A point per eighth of a text is
//! written to standard error; all points together, on standard output, form a file for `htc
//! report`.

use std::error::Error;
use std::sync::Arc;

use htc_loader::adapt::{AdaptOptions, Adaptation, AdaptationStats};
use htc_loader::dial::ActiveSetting;
use htc_loader::generate::{GenerateLimits, Generator};
use htc_loader::sampling::{Sampler, SamplingOptions};
use htc_loader::speculate::{DraftLength, Speculator};
use htc_loader::tokenizer::AddSpecialTokens;
use htc_loader::{Cpu, Model, Pool, Session};

const READ_TOKENS: usize = 64;
const GENERATED_TOKENS: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, draft, how, windows, texts @ ..] = &args[..] else {
        return Err("drift MODEL DRAFT off|oja|gradient[,RATE[,EXPONENT]] WINDOWS TEXT...".into());
    };
    let windows: usize = windows.parse()?;
    let pool = Arc::new(Pool::new(1)?);
    let (model, draft) = (Arc::new(Model::open(model)?), Arc::new(Model::open(draft)?));
    let tokenizer = model.tokenizer()?;
    let mut options = SamplingOptions::default();
    (options.temperature, options.seed) = (0.8, 1);
    let mut sampler = Sampler::new(options)?;
    let context = READ_TOKENS + GENERATED_TOKENS + 1;
    let mut session = Session::new(Arc::clone(&model), Cpu::new(&pool), context)?;
    let drafting = Session::new(Arc::clone(&draft), Cpu::new(&pool), context)?;
    let length = DraftLength::Fixed(4);
    let mut speculator = Speculator::with_draft_model(drafting, &model, length, &sampler)?;
    let mut parts = how.split(',');
    let kind = parts.next().unwrap_or_default();
    let mut learning = match kind {
        "oja" => AdaptOptions::oja(),
        _ => AdaptOptions::gradient(),
    };
    if let Some(rate) = parts.next() {
        learning.rate = rate.parse()?;
    }
    if let Some(exponent) = parts.next() {
        learning.exponent = exponent.parse()?;
    }
    let (of_draft, of_model) = (draft.file(), model.file());
    match kind {
        "off" => {}
        "oja" => {
            let bases = Adaptation::oja(of_draft, ActiveSetting::FULL, of_model, learning, &pool)?;
            speculator = speculator.with_adaptation(bases);
        }
        "gradient" => {
            let correction = Adaptation::gradient(of_draft, learning)?;
            speculator = speculator.with_adaptation(correction);
        }
        other => return Err(format!("off, oja or gradient, found {other}").into()),
    }
    let mut points = Vec::new();
    for text in texts {
        let tokens = tokenizer.encode(&std::fs::read_to_string(text)?, AddSpecialTokens::Prompt);
        let (bos, rest) = tokens.split_first().ok_or("an empty text")?;
        // Acceptance rate of the drafted tokens, per window.
        let mut kept: Vec<f64> = Vec::new();
        // Log ratio of the draft's perplexity to the model's on the next window.
        let mut apart: Vec<f64> = Vec::new();
        let mut following = rest.chunks_exact(READ_TOKENS - 1).skip(1);
        for (index, window) in rest.chunks_exact(READ_TOKENS - 1).take(windows).enumerate() {
            session.reset();
            speculator.reset();
            let before = speculator.stats();
            let prompt = [&[*bos], window].concat();
            let mut limits = GenerateLimits::tokens(GENERATED_TOKENS);
            limits.ignore_end = true;
            let (draft, sampler) = (&mut speculator, &mut sampler);
            Generator::with_draft(&mut session, draft, &tokenizer, sampler, &prompt, limits)?
                .run(|_| true)?;
            let done = speculator.stats();
            let drafted = (done.drafted - before.drafted).max(1);
            kept.push((done.accepted - before.accepted) as f64 / drafted as f64);
            if let Some(next) = following.next() {
                let unseen = [&[*bos], next].concat();
                speculator.reset();
                session.reset();
                let of_model = mean_negative_log_likelihood(&mut session, &unseen)?;
                let drafting = speculator.draft_session_mut().ok_or("no draft")?;
                apart.push(mean_negative_log_likelihood(drafting, &unseen)? - of_model);
            }
            if (index + 1).is_multiple_of((windows / 8).max(1)) {
                let learnt = speculator.adaptation().map(Adaptation::stats);
                let name = text.rsplit('/').next().unwrap_or_default();
                let point =
                    format_point(name, index + 1, &kept, &apart, learnt.unwrap_or_default());
                eprintln!("{point}");
                points.push(point);
                kept.clear();
                apart.clear();
            }
        }
    }
    let [model, draft] = [model, draft].map(|model| name_of(&model));
    println!(
        "{{\"drift\":1,\"model\":\"{model}\",\"draft\":\"{draft}\",\"learns\":\"{how}\",\"read\":{READ_TOKENS},\
         \"written\":{GENERATED_TOKENS},\"points\":[\n{}\n]}}",
        points.join(",\n")
    );
    Ok(())
}

fn name_of(model: &Model) -> String {
    let file = model.file().path.file_name().unwrap_or_default();
    file.to_string_lossy().escape_default().to_string()
}

fn mean_negative_log_likelihood(
    session: &mut Session,
    tokens: &[u32],
) -> Result<f64, Box<dyn Error>> {
    session.forward(tokens)?;
    let rows = tokens.len() - 1;
    let logits = session.logits(0, rows)?;
    let vocabulary = logits.len() / rows;
    let rows = logits.chunks_exact(vocabulary).zip(&tokens[1..]);
    let of_row = |(row, &token): (&[f32], &u32)| {
        let largest = row.iter().fold(f32::NEG_INFINITY, |most, &x| most.max(x));
        let sum: f64 = row.iter().map(|&x| f64::from(x - largest).exp()).sum();
        sum.ln() - f64::from(row[token as usize] - largest)
    };
    Ok(rows.map(of_row).sum::<f64>() / (tokens.len() - 1) as f64)
}

fn mean(numbers: &[f64]) -> [f64; 2] {
    let count = numbers.len() as f64;
    let mean = numbers.iter().sum::<f64>() / count;
    let squares: f64 = numbers.iter().map(|x| (x - mean).powi(2)).sum();
    [mean, (squares / (count * (count - 1.0)).max(1.0)).sqrt()]
}

fn format_point(
    text: &str,
    windows: usize,
    kept: &[f64],
    apart: &[f64],
    learnt: AdaptationStats,
) -> String {
    let ([acceptance, error], [apart, apart_error]) = (mean(kept), mean(apart));
    let number = |number: Option<f64>| match number {
        Some(number) => format!("{number:.4}"),
        None => "null".into(),
    };
    let [now, first] = [0, 1].map(|index| number(learnt.residual.map(|both| both[index])));
    format!(
        "{{\"text\":\"{text}\",\"windows\":{windows},\"acceptance\":{acceptance:.4},\"standard_error\":{error:.4},\
         \"log_perplexity_ratio\":{apart:.4},\"log_perplexity_ratio_error\":{apart_error:.4},\"updates\":{},\
         \"distance\":{:.4},\"overlap\":{},\"residual\":{now},\"residual_frozen\":{first},\"ms\":{:.0}}}",
        learnt.updates,
        learnt.distance,
        number(learnt.overlap),
        1e3 * learnt.time.as_secs_f64(),
    )
}

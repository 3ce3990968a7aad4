//! How a draft that learns follows a text: acceptance, what its bases miss, and how far they went, window by window.
//!
//! `drift MODEL DRAFT off|oja|gradient[,RATE[,EXPONENT]] WINDOWS TEXT...` lets DRAFT foresee what MODEL writes behind the
//! first 64 tokens of windows of every text in turn, drawn at a temperature of 0.8 with one seed, and prints a line of
//! JSON for every eighth of a text's windows.

use std::error::Error;
use std::sync::Arc;

use htc_loader::adapt::{AdaptOptions, Adaptation, Learnt};
use htc_loader::dial::Setting;
use htc_loader::generate::{Generator, Limits};
use htc_loader::sampling::{Sampler, SamplingOptions};
use htc_loader::speculate::{DraftLength, Speculator};
use htc_loader::tokenizer::AddSpecial;
use htc_loader::{Cpu, Model, Pool, Session};

/// Tokens of a window that are read, and that are written behind.
const READ: usize = 64;
const WRITTEN: usize = 64;

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
    let context = READ + WRITTEN + 1;
    let mut session = Session::new(Arc::clone(&model), Cpu::new(&pool), context)?;
    let drafting = Session::new(Arc::clone(&draft), Cpu::new(&pool), context)?;
    let length = DraftLength::Fixed(4);
    let mut speculator = Speculator::other(drafting, &model, length, &sampler)?;
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
            let bases = Adaptation::oja(of_draft, Setting::FULL, of_model, learning, &pool)?;
            speculator = speculator.with_adaptation(bases);
        }
        "gradient" => {
            let correction = Adaptation::gradient(of_draft, learning)?;
            speculator = speculator.with_adaptation(correction);
        }
        other => return Err(format!("off, oja or gradient, found {other}").into()),
    }
    for text in texts {
        let tokens = tokenizer.encode(&std::fs::read_to_string(text)?, AddSpecial::Prompt);
        let (bos, rest) = tokens.split_first().ok_or("an empty text")?;
        // Of every window of an eighth: the part of its drafted tokens that was kept.
        let mut kept: Vec<f64> = Vec::new();
        for (index, window) in rest.chunks_exact(READ - 1).take(windows).enumerate() {
            session.reset();
            speculator.reset();
            let before = speculator.done();
            let prompt = [&[*bos], window].concat();
            let mut limits = Limits::tokens(WRITTEN);
            limits.ignore_end = true;
            let (draft, sampler) = (&mut speculator, &mut sampler);
            Generator::with_draft(&mut session, draft, &tokenizer, sampler, &prompt, limits)?
                .run(|_| true)?;
            let done = speculator.done();
            let drafted = (done.drafted - before.drafted).max(1);
            kept.push((done.accepted - before.accepted) as f64 / drafted as f64);
            if (index + 1).is_multiple_of((windows / 8).max(1)) {
                let learnt = speculator.adaptation().map(Adaptation::learnt);
                let name = text.rsplit('/').next().unwrap_or_default();
                println!(
                    "{}",
                    line(name, index + 1, &kept, learnt.unwrap_or_default())
                );
                kept.clear();
            }
        }
    }
    Ok(())
}

/// What some windows came to.
fn line(text: &str, windows: usize, kept: &[f64], learnt: Learnt) -> String {
    let count = kept.len() as f64;
    let mean = kept.iter().sum::<f64>() / count;
    let squares: f64 = kept.iter().map(|x| (x - mean).powi(2)).sum();
    let error = (squares / (count * (count - 1.0)).max(1.0)).sqrt();
    let [now, first] = learnt.residual.unwrap_or_default();
    format!(
        "{{\"text\":\"{text}\",\"windows\":{windows},\"acceptance\":{mean:.4},\"standard_error\":{error:.4},\
         \"updates\":{},\"distance\":{:.4},\"residual\":{now:.4},\"residual_frozen\":{first:.4},\"ms\":{:.0}}}",
        learnt.updates,
        learnt.distance,
        1e3 * learnt.time.as_secs_f64(),
    )
}

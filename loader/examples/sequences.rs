//! Measures the tokens per second of 1 to 16 sequences that one engine generates at a time.
//!
//! `cargo run --release -p htc-loader --example sequences -- MODEL [TOKENS [THREADS [DEVICE]]]`

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use htc_loader::device::{DeviceChoice, DeviceWork, Executor};
use htc_loader::exec::{Chunk, LogitRows};
use htc_loader::kv::{KvOptions, KvType};
use htc_loader::{Backend, Engine, Model, Pool};

const COUNTS: [usize; 5] = [1, 2, 4, 8, 16];
const ROUNDS: usize = 5;
const PROMPT: usize = 32;

struct Measurement {
    model: Arc<Model>,
    tokens: usize,
}

impl DeviceWork for Measurement {
    type Outcome = Result<(), Box<dyn Error>>;

    fn run<E: Executor>(self, executor: &E) -> Self::Outcome {
        let model = executor.load(&self.model)?;
        let options = KvOptions::new(KvType::F16);
        let context = PROMPT + self.tokens;
        let mut engine = Engine::new(model, executor.backend(), context, &options)?;
        // The best of several rounds, because other programs only ever slow one down.
        let mut best = [Duration::MAX; COUNTS.len()];
        for _ in 0..ROUNDS {
            for (best, count) in best.iter_mut().zip(COUNTS) {
                *best = generate(&mut engine, count, self.tokens)?.min(*best);
            }
        }
        println!("{}", executor.name());
        for (time, count) in best.iter().zip(COUNTS) {
            let rate = (count * self.tokens) as f64 / time.as_secs_f64();
            println!("{count:3} sequences: {rate:9.1} tokens/s");
        }
        Ok(())
    }
}

/// Generates `tokens` tokens for each of `count` sequences; returns the time without prompts.
fn generate<B: Backend>(
    engine: &mut Engine<B>,
    count: usize,
    tokens: usize,
) -> Result<Duration, Box<dyn Error>> {
    let vocabulary = engine.model().hyper().vocabulary;
    let ids = (0..count)
        .map(|_| engine.add_sequence())
        .collect::<Result<Vec<_>, _>>()?;
    let mut next = vec![1; count];
    for (index, (id, next)) in ids.iter().zip(&mut next).enumerate() {
        let token = |at: usize| ((3 + at * 37 + index * 11) % vocabulary) as u32;
        let prompt: Vec<u32> = (0..PROMPT).map(token).collect();
        let prompt = Chunk {
            sequence: *id,
            tokens: &prompt,
            logits: LogitRows::Last,
        };
        *next = largest(&engine.run(&[prompt])?.concat());
    }
    let began = Instant::now();
    for _ in 0..tokens {
        let chunks = ids.iter().zip(&next).map(|(id, token)| Chunk {
            sequence: *id,
            tokens: std::slice::from_ref(token),
            logits: LogitRows::Last,
        });
        let chunks: Vec<_> = chunks.collect();
        let logits = engine.run(&chunks)?;
        next = logits.into_iter().map(largest).collect();
    }
    let time = began.elapsed();
    ids.into_iter()
        .try_for_each(|id| engine.remove_sequence(id))?;
    Ok(time)
}

/// Returns the index of the largest number.
fn largest(logits: &[f32]) -> u32 {
    let all = logits.iter().enumerate();
    all.max_by(|a, b| a.1.total_cmp(b.1))
        .map_or(0, |(index, _)| index as u32)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, rest @ ..] = &arguments[..] else {
        return Err("usage: sequences MODEL [TOKENS [THREADS [DEVICE]]]".into());
    };
    let number =
        |index: usize, default: usize| rest.get(index).map_or(Ok(default), |text| text.parse());
    let tokens = number(0, 64)?;
    let pool = Arc::new(Pool::new(number(1, 2)?)?);
    let device = rest
        .get(2)
        .map_or(Ok(DeviceChoice::Cpu), |name| name.parse())?;
    let model = Arc::new(Model::open(path)?);
    device.execute(&pool, |_| (), Measurement { model, tokens })?
}

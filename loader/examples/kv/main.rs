//! Comparison of KV cache types with float16 in size, quality and speed, in pairs.
//!
//! `kv MODEL TEXT [NAME=VALUE]... KIND[,PART]...` prints a table and writes JSON. KIND is spelt as
//! for `htc eval --kv`, and PART is the part of a prompt that is kept after it (`htc run
//! --kv-keep`); kinds with bases need an artifact of `htc compile --kv-bases`. Values and defaults:
//!
//! * `context=512 windows=16`: tokens of a window of TEXT, and number of windows (0: no scores),
//!   evenly spread. A window begins with BOS; its first half is a prompt, its second half is scored
//!   (perplexity, KL divergence from float16).
//! * `pass=32 step=32`: positions of a pass of the first half, and of the second. Attention within
//!   a pass is exact, so short passes measure the stored cache. `htc run` reads prompts in passes
//!   of 512, after which bases of `oja` follow the most important positions only.
//! * `pairs=7 written=32`: timed runs of the first half (time to first token) and, with all but
//!   `written` tokens of the context read, of as many single steps; each before or after a run with
//!   float16. 0 for none.
//! * `copies=4 keys=4 needle=0`: texts of `needle` tokens (0: the context) for each of five depths,
//!   of two tasks. *copy*: a passage of 32 tokens from elsewhere is inserted at the depth, its
//!   first 16 are repeated at the end, and the other 16 are scored. *pass key*: a sentence at the
//!   depth gives five digits that a question at the end asks for. `exact` is the part of draws in
//!   which every token is the most likely; `nats` the negative log-likelihood per token, compared
//!   with that of float16 with another passage or number inserted (`unseen`), the level of a cache
//!   that retains nothing.
//! * `threads=2 seed=1 json=FILE`.
//!
//! Standard errors are over windows, or draws, of paired differences to float16.

mod tasks;

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use htc_loader::kv::{KvKind, KvOptions, KvUsage};
use htc_loader::tokenizer::{AddSpecialTokens, Tokenizer};
use htc_loader::{Cpu, Model, Pool, Session};
use serde_json::{Value, json};

use tasks::{DEPTHS, measure_retrieval};

type Outcome<T> = Result<T, Box<dyn Error>>;

struct Arguments {
    model: String,
    text: String,
    context: usize,
    windows: usize,
    pass: usize,
    step: usize,
    pairs: usize,
    written: usize,
    copies: usize,
    keys: usize,
    needle: usize,
    threads: usize,
    seed: usize,
    json: Option<String>,
    cases: Vec<CacheCase>,
}

struct CacheCase {
    name: String,
    kind: KvKind,
    part: Option<f64>,
}

impl CacheCase {
    fn parse(name: &str) -> Outcome<Self> {
        let (kind, part) = match name.split_once(',') {
            Some((kind, part)) => (kind, Some(part.parse()?)),
            None => (name, None),
        };
        if part.is_some_and(|part: f64| !(part > 0.0 && part < 1.0)) {
            return Err(format!("{name}: a part of a prompt is between 0 and 1").into());
        }
        Ok(CacheCase {
            name: name.to_owned(),
            kind: kind.parse()?,
            part,
        })
    }

    fn session(&self, bench: &Bench, prompt: usize, pass: Option<usize>) -> Outcome<Session> {
        let mut options = KvOptions::new(self.kind);
        options.max_pass_positions = pass;
        options.max_prompt_positions = self
            .part
            .map(|part| (part * prompt as f64).round() as usize);
        let cpu = Cpu::new(&bench.pool);
        let model = Arc::clone(&bench.model);
        Ok(Session::with_kv_of(model, cpu, bench.context, &options)?)
    }
}

struct Bench {
    model: Arc<Model>,
    pool: Arc<Pool>,
    tokenizer: Tokenizer,
    bos: Vec<u32>,
    tokens: Vec<u32>,
    context: usize,
}

fn main() -> Outcome<()> {
    let arguments = parse()?;
    let pool = Arc::new(Pool::new(arguments.threads)?);
    let model = Arc::new(Model::open(&arguments.model)?);
    let tokenizer = model.tokenizer()?;
    let text = std::fs::read_to_string(&arguments.text)?;
    let bench = Bench {
        bos: tokenizer.bos().into_iter().collect(),
        tokens: tokenizer.encode(&text, AddSpecialTokens::TextOnly),
        context: arguments.context,
        model,
        pool,
        tokenizer,
    };
    if bench.tokens.len() / arguments.windows.max(1) < arguments.context {
        return Err("the text has fewer tokens than the windows".into());
    }
    let scores = measure_scores(&bench, &arguments)?;
    let times = measure_times(&bench, &arguments)?;
    let copies = measure_retrieval(&bench, &arguments, false)?;
    let keys = measure_retrieval(&bench, &arguments, true)?;
    let rows: Vec<Value> = (0..arguments.cases.len())
        .map(|index| {
            json!({
                "kind": arguments.cases[index].name,
                "score": scores[index],
                "time": times[index],
                "copy": copies[index],
                "pass_key": keys[index],
            })
        })
        .collect();
    print_table(&rows);
    let record = json!({
        "model": arguments.model.rsplit('/').next(),
        "text": arguments.text.rsplit('/').next(),
        "context": arguments.context, "windows": arguments.windows,
        "pass": arguments.pass, "step": arguments.step,
        "copies": arguments.copies * DEPTHS.len(), "keys": arguments.keys * DEPTHS.len(), "threads": arguments.threads,
        "kinds": rows,
    });
    match &arguments.json {
        Some(path) => std::fs::write(path, format!("{record:#}\n"))?,
        None => println!("{record}"),
    }
    Ok(())
}

fn parse() -> Outcome<Arguments> {
    let all: Vec<String> = std::env::args().skip(1).collect();
    let [model, text, rest @ ..] = &all[..] else {
        return Err("kv MODEL TEXT [NAME=VALUE]... KIND[,PART]...".into());
    };
    let mut arguments = Arguments {
        model: model.clone(),
        text: text.clone(),
        context: 512,
        windows: 16,
        pass: 32,
        step: 32,
        pairs: 7,
        written: 32,
        copies: 4,
        keys: 4,
        needle: 0,
        threads: 2,
        seed: 1,
        json: None,
        cases: vec![CacheCase::parse("f16")?],
    };
    for argument in rest {
        let Some((name, value)) = argument.split_once('=') else {
            if argument != "f16" {
                arguments.cases.push(CacheCase::parse(argument)?);
            }
            continue;
        };
        let number = match name {
            "context" => &mut arguments.context,
            "windows" => &mut arguments.windows,
            "pass" => &mut arguments.pass,
            "step" => &mut arguments.step,
            "pairs" => &mut arguments.pairs,
            "written" => &mut arguments.written,
            "copies" => &mut arguments.copies,
            "keys" => &mut arguments.keys,
            "needle" => &mut arguments.needle,
            "threads" => &mut arguments.threads,
            "seed" => &mut arguments.seed,
            "json" => {
                arguments.json = Some(value.to_owned());
                continue;
            }
            _ => return Err(format!("nothing is called {name}").into()),
        };
        let wrong = |_| format!("{name} is `{value}`, expected a number");
        *number = value.parse().map_err(wrong)?;
    }
    if arguments.needle == 0 || arguments.needle > arguments.context {
        arguments.needle = arguments.context;
    }
    let half = arguments.context / 2;
    let (step, pass) = (arguments.step, arguments.pass);
    if arguments.windows == 1 || step == 0 || step > pass || half <= arguments.written {
        return Err(
            "no window or two and more, 0 < step <= pass, and written below half of them".into(),
        );
    }
    Ok(arguments)
}

#[derive(Clone, Default)]
struct Series(Vec<f64>);

impl Series {
    fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len() as f64
    }

    fn error(&self) -> f64 {
        let (mean, count) = (self.mean(), self.0.len() as f64);
        let squares: f64 = self.0.iter().map(|x| (x - mean).powi(2)).sum();
        (squares / (count * (count - 1.0))).sqrt()
    }

    fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len() - 1;
        0.5 * (sorted[last / 2] + sorted[last.div_ceil(2)])
    }

    fn paired_difference(&self, other: &Series) -> Series {
        Series(self.0.iter().zip(&other.0).map(|(a, b)| a - b).collect())
    }
}

struct ReferenceDistribution {
    probabilities: Vec<f64>,
    entropy: f64,
    top: usize,
}

fn log_sum(logits: &[f32]) -> f64 {
    let largest = f64::from(logits[argmax(logits)]);
    let sum: f64 = logits.iter().map(|&x| (f64::from(x) - largest).exp()).sum();
    largest + sum.ln()
}

fn dot(a: &[f64], b: impl Iterator<Item = f64>) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn argmax(logits: &[f32]) -> usize {
    (0..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best })
}

fn measure_scores(bench: &Bench, arguments: &Arguments) -> Outcome<Vec<Value>> {
    if arguments.windows == 0 {
        return Ok(vec![Value::Null; arguments.cases.len()]);
    }
    let (context, half) = (arguments.context, arguments.context / 2);
    let sessions = arguments.cases.iter();
    let sessions = sessions.map(|case| case.session(bench, half, Some(arguments.pass)));
    let mut sessions = sessions.collect::<Outcome<Vec<Session>>>()?;
    let mut scores = vec![<[Series; 3]>::default(); sessions.len()];
    let stride = bench.tokens.len() / arguments.windows;
    for start in (0..arguments.windows).map(|window| window * stride) {
        let text = &bench.tokens[start..][..context - bench.bos.len()];
        let window = [&bench.bos[..], text].concat();
        for session in &mut sessions {
            session.reset();
            session.read_prompt(&window[..half])?;
        }
        let mut sums = vec![[0.0; 3]; sessions.len()];
        for first in (half..context - 1).step_by(arguments.step) {
            let last = context.min(first + arguments.step + 1) - 1;
            let targets = &window[first + 1..=last];
            score_pass(&mut sessions, &window[first..last], targets, &mut sums)?;
        }
        for (score, sums) in scores.iter_mut().zip(&sums) {
            for (series, sum) in score.iter_mut().zip(sums) {
                series.0.push(sum / (context - 1 - half) as f64);
            }
        }
    }
    let usages: Vec<KvUsage> = sessions.iter().map(Session::kv_usage).collect();
    let records = scores.iter().zip(&sessions).zip(&usages);
    let records = records.map(|(([loss, divergence, agreement], session), usage)| {
        let apart = loss.paired_difference(&scores[0][0]);
        let counters = session.kv_counters();
        json!({
            "bytes_per_position": usage.bytes_per_position,
            "of_f16": usage.bytes_per_position as f64 / usages[0].bytes_per_position as f64,
            "bytes_at_end": usage.used, "at_end_of_f16": usage.used as f64 / usages[0].used as f64,
            "allocated": usage.bytes, "evicted": usage.evicted,
            "perplexity": loss.mean().exp(),
            "loss_apart": apart.mean(), "loss_apart_error": apart.error(), "loss_apart_of_windows": apart.0,
            "kl": divergence.mean(), "kl_error": divergence.error(),
            "agreement": agreement.mean(), "agreement_error": agreement.error(),
            "updates": counters.updates, "residual": counters.residual_ratio(),
            "distance": counters.drift.last(), "overlap": counters.overlap.last(),
        })
    });
    Ok(records.collect())
}

/// Reads tokens with every session, of which the first is the reference, and returns sums of loss,
/// divergence and agreement.
fn score_pass(
    sessions: &mut [Session],
    tokens: &[u32],
    targets: &[u32],
    sums: &mut [[f64; 3]],
) -> Outcome<()> {
    let mut plain: Vec<ReferenceDistribution> = Vec::new();
    for (session, sums) in sessions.iter_mut().zip(sums) {
        session.forward(tokens)?;
        let vocabulary = session.model().hyper().vocabulary;
        let logits = session.logits(0, tokens.len())?.chunks_exact(vocabulary);
        for (row, (logits, &target)) in logits.zip(targets).enumerate() {
            let log_sum = log_sum(logits);
            let of_logs = logits.iter().map(|&x| f64::from(x) - log_sum);
            if plain.len() <= row {
                let probabilities: Vec<f64> = of_logs.clone().map(f64::exp).collect();
                plain.push(ReferenceDistribution {
                    entropy: dot(&probabilities, of_logs.clone()),
                    probabilities,
                    top: argmax(logits),
                });
            }
            let plain = &plain[row];
            let divergence = plain.entropy - dot(&plain.probabilities, of_logs);
            sums[0] += log_sum - f64::from(logits[target as usize]);
            // Negative values are rounding errors.
            sums[1] += divergence.max(0.0);
            sums[2] += f64::from(u8::from(plain.top == argmax(logits)));
        }
    }
    Ok(())
}

/// Returns the seconds to read a prompt of half the context, and of a single step at its end.
fn time_prompt_and_step(
    session: &mut Session,
    tokens: &[u32],
    written: usize,
) -> Outcome<[f64; 2]> {
    let (prompt, rest) = tokens.split_at(tokens.len() / 2);
    session.reset();
    let started = Instant::now();
    session.read_prompt(prompt)?;
    session.last_logits()?;
    let first = started.elapsed().as_secs_f64();
    let (rest, single) = rest.split_at(rest.len() - written);
    session.step(rest)?;
    let started = Instant::now();
    for token in single {
        session.step(&[*token])?;
    }
    let step = started.elapsed().as_secs_f64() / written.max(1) as f64;
    Ok([first, step])
}

fn measure_times(bench: &Bench, arguments: &Arguments) -> Outcome<Vec<Value>> {
    if arguments.pairs == 0 {
        return Ok(vec![Value::Null; arguments.cases.len()]);
    }
    let (written, half) = (arguments.written, arguments.context / 2);
    let tokens = [&bench.bos[..], &bench.tokens].concat();
    let tokens = &tokens[..arguments.context];
    let mut plain = arguments.cases[0].session(bench, half, None)?;
    time_prompt_and_step(&mut plain, tokens, written)?;
    let mut records = Vec::new();
    for case in &arguments.cases {
        let mut session = case.session(bench, half, None)?;
        time_prompt_and_step(&mut session, tokens, written)?;
        let mut seconds = [Series::default(), Series::default()];
        let mut ratios = seconds.clone();
        for pair in 0..arguments.pairs {
            let mut both = [[0.0; 2]; 2];
            for turn in 0..2 {
                let which = (pair + turn) % 2;
                let session = if which == 0 { &mut plain } else { &mut session };
                both[which] = time_prompt_and_step(session, tokens, written)?;
            }
            for side in 0..2 {
                seconds[side].0.push(both[1][side]);
                ratios[side].0.push(both[1][side] / both[0][side]);
            }
        }
        // Converts step times to speeds.
        ratios[1]
            .0
            .iter_mut()
            .for_each(|ratio| *ratio = 1.0 / *ratio);
        records.push(json!({
            "first_token_ms": 1e3 * seconds[0].median(), "first_token_ratio": ratios[0].median(),
            "first_token_ratios": ratios[0].0,
            "tokens_per_second": 1.0 / seconds[1].median(), "decode_ratio": ratios[1].median(),
            "decode_ratios": ratios[1].0,
        }));
    }
    Ok(records)
}

fn print_table(rows: &[Value]) {
    println!(
        "| kind | bytes a position | of f16, at the end | perplexity | loss less f16's, nats | KL divergence, nats | same token \
         | first token, time | decode, speed | pass key, exact | nats | copy, exact | nats |"
    );
    println!("| --- | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |");
    for row in rows {
        let number = |path: &str, digits: usize| match row.pointer(path).and_then(Value::as_f64) {
            Some(value) => format!("{value:.digits$}"),
            None => "-".to_owned(),
        };
        println!(
            "| {} | {} | {} | {} | {} ± {} | {} ± {} | {} | {} | {} | {} | {} | {} | {} |",
            row["kind"].as_str().unwrap_or_default(),
            number("/score/bytes_per_position", 0),
            number("/score/at_end_of_f16", 3),
            number("/score/perplexity", 3),
            number("/score/loss_apart", 5),
            number("/score/loss_apart_error", 5),
            number("/score/kl", 5),
            number("/score/kl_error", 5),
            number("/score/agreement", 3),
            number("/time/first_token_ratio", 3),
            number("/time/decode_ratio", 3),
            number("/pass_key/exact", 2),
            number("/pass_key/nats", 3),
            number("/copy/exact", 2),
            number("/copy/nats", 3),
        );
    }
}

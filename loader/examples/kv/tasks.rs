//! Retrieval tasks for KV caches.

use htc_loader::Session;
use htc_loader::tokenizer::AddSpecialTokens;
use serde_json::{Value, json};

use super::{Arguments, Bench, Outcome, Series, argmax, log_sum};

/// Relative depths at which the passage is inserted.
pub const DEPTHS: [f64; 5] = [0.1, 0.3, 0.5, 0.7, 0.9];

const COPIED: usize = 32;
const CUE: usize = 16;

/// SplitMix64 (Steele, Lea and Flood 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        ((u128::from(z) * end as u128) >> 64) as usize
    }
}

/// A prompt that asks for inserted content, the same prompt with other content, and the answer.
struct Task {
    prompt: Vec<u32>,
    unseen: Vec<u32>,
    answer: Vec<u32>,
}

impl Task {
    fn copy(bench: &Bench, length: usize, depth: f64, random: &mut Random) -> Self {
        let mut passage = || {
            let start = random.below(bench.tokens.len() - COPIED);
            bench.tokens[start..start + COPIED].to_vec()
        };
        let (said, other) = (passage(), passage());
        let (asks, answer) = said.split_at(CUE);
        let [prompt, unseen] = build_prompts(bench, [&said, &other], asks, length, depth, random);
        Task {
            prompt,
            unseen,
            answer: answer.to_vec(),
        }
    }

    fn key(bench: &Bench, length: usize, depth: f64, random: &mut Random) -> Outcome<Self> {
        let encode = |text: &str| bench.tokenizer.encode(text, AddSpecialTokens::TextOnly);
        let mut key = || {
            (0..5)
                .map(|_| random.below(10).to_string())
                .collect::<String>()
        };
        let (key, other) = (key(), key());
        let says = |key: &str| {
            encode(&format!(
                "\nThe pass key is {key}. Remember it. {key} is the pass key.\n"
            ))
        };
        let asks = encode("\nWhat is the pass key? The pass key is");
        let whole = encode(&format!("\nWhat is the pass key? The pass key is {key}"));
        let answer = whole.strip_prefix(&asks[..]);
        let answer = answer.ok_or("a question is encoded otherwise before its answer")?;
        let [prompt, unseen] = build_prompts(
            bench,
            [&says(&key), &says(&other)],
            &asks,
            length,
            depth,
            random,
        );
        Ok(Task {
            prompt,
            unseen,
            answer: answer.to_vec(),
        })
    }
}

/// Returns a text of about `length` tokens with the content at a depth and the question at the end,
/// for both contents.
fn build_prompts(
    bench: &Bench,
    said: [&[u32]; 2],
    asks: &[u32],
    length: usize,
    depth: f64,
    random: &mut Random,
) -> [Vec<u32>; 2] {
    let taken = bench.bos.len() + said[0].len().max(said[1].len()) + asks.len() + COPIED;
    let filler = length.saturating_sub(taken);
    let start = random.below(bench.tokens.len() - filler);
    let (before, behind) =
        bench.tokens[start..][..filler].split_at((depth * filler as f64) as usize);
    said.map(|said| [&bench.bos[..], before, said, behind, asks].concat())
}

fn score_answer(session: &mut Session, prompt: &[u32], answer: &[u32]) -> Outcome<(f64, bool)> {
    session.reset();
    session.read_prompt(prompt)?;
    let (mut loss, mut exact) = (0.0, true);
    for (index, &token) in answer.iter().enumerate() {
        if index > 0 {
            session.step(&[answer[index - 1]])?;
        }
        let logits = session.last_logits()?;
        loss += log_sum(logits) - f64::from(logits[token as usize]);
        exact &= argmax(logits) == token as usize;
    }
    Ok((loss / answer.len() as f64, exact))
}

fn means_by_depth(series: &Series) -> [f64; DEPTHS.len()] {
    std::array::from_fn(|at| {
        let draws = series.0.iter().skip(at).step_by(DEPTHS.len());
        Series(draws.copied().collect()).mean()
    })
}

/// Measures the retrieval of every type.
pub fn measure_retrieval(bench: &Bench, arguments: &Arguments, key: bool) -> Outcome<Vec<Value>> {
    let draws = if key {
        arguments.keys
    } else {
        arguments.copies
    };
    if draws == 0 {
        return Ok(vec![Value::Null; arguments.cases.len()]);
    }
    let mut random = Random(arguments.seed as u64);
    let mut tasks = Vec::new();
    for draw in 0..draws * DEPTHS.len() {
        let (length, depth) = (arguments.needle, DEPTHS[draw % DEPTHS.len()]);
        tasks.push(if key {
            Task::key(bench, length, depth, &mut random)?
        } else {
            Task::copy(bench, length, depth, &mut random)
        });
    }
    let mut unseen = Series::default();
    let mut losses: Vec<Series> = Vec::new();
    let mut records = Vec::new();
    for (index, case) in arguments.cases.iter().enumerate() {
        let (mut loss, mut exact) = (Series::default(), Series::default());
        for task in &tasks {
            let mut session = case.session(bench, task.prompt.len(), None)?;
            let (nats, hit) = score_answer(&mut session, &task.prompt, &task.answer)?;
            loss.0.push(nats);
            exact.0.push(f64::from(u8::from(hit)));
            if index == 0 {
                let (nats, _) = score_answer(&mut session, &task.unseen, &task.answer)?;
                unseen.0.push(nats);
            }
        }
        losses.push(loss.clone());
        let apart = loss.paired_difference(&losses[0]);
        records.push(json!({
            "exact": exact.mean(), "nats": loss.mean(), "unseen": unseen.mean(),
            "apart": apart.mean(), "apart_error": apart.error(),
            "exact_by_depth": means_by_depth(&exact),
            "nats_by_depth": means_by_depth(&loss),
        }));
    }
    Ok(records)
}

//! Multiple-choice knapsack: selects one form for each matrix with the least total loss within a
//! byte budget.
//!
//! The solver keeps lists of Pareto-optimal sums (Nemhauser and Ullmann, "Discrete dynamic
//! programming and capital allocation", 1969). It is exact while a list has at most [`LONGEST`]
//! sums; beyond, to the width of a bucket.

use super::form::MatrixForm;

const MAX_SUMS: usize = 1 << 14;

/// Maximum length of the list of a group with shared forms. A bucket is about as wide as the step
/// between two forms of a matrix.
const MAX_GROUP_SUMS: usize = 1 << 9;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Candidate<T = MatrixForm> {
    pub form: T,
    pub bytes: u64,
    /// Nats per token.
    pub loss: f64,
}

pub(super) fn pareto_front<T>(mut all: Vec<Candidate<T>>) -> Vec<Candidate<T>> {
    all.sort_by(|a, b| {
        (a.bytes, a.loss)
            .partial_cmp(&(b.bytes, b.loss))
            .unwrap_or(std::cmp::Ordering::Equal)
    });
    retain_falling(&mut all, |choice| choice.loss);
    all
}

/// Keeps the items with a smaller loss than all before them.
pub(crate) fn retain_falling<T>(all: &mut Vec<T>, loss: impl Fn(&T) -> f64) {
    let mut least = f64::INFINITY;
    all.retain(|item| {
        let better = loss(item) < least;
        least = least.min(loss(item));
        better
    });
}

/// Choices kept on each side of the one selected by the price of a byte (the core of a knapsack:
/// Balas and Zemel, "An algorithm for large zero-one knapsack problems", 1980).
const CORE_RADIUS: usize = 4;

/// Keeps the choices around those that the budget's price selects, and the smallest.
pub(super) fn core<T>(mut choices: Vec<Vec<Candidate<T>>>, budget: u64) -> Vec<Vec<Candidate<T>>> {
    let at = |of: &[Candidate<T>], price: f64| {
        let costs = of.iter().map(|c| c.loss + price * c.bytes as f64);
        let least = costs.enumerate().min_by(|a, b| a.1.total_cmp(&b.1));
        least.map_or(0, |(index, _)| index)
    };
    let bytes = |price: f64| -> u64 {
        let taken = choices.iter().filter_map(|of| of.get(at(of, price)));
        taken.map(|choice| choice.bytes).sum()
    };
    let (mut low, mut high) = (-80.0_f64, 20.0_f64);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if bytes(middle.exp()) > budget {
            low = middle
        } else {
            high = middle
        }
    }
    for of in &mut choices {
        let taken = at(of, high.exp());
        let mut index = 0;
        of.retain(|_| {
            let near = index == 0 || index + CORE_RADIUS >= taken && index <= taken + CORE_RADIUS;
            index += 1;
            near
        });
    }
    choices
}

#[derive(Clone, Copy, Debug)]
struct Sum {
    bytes: u64,
    loss: f64,
    /// Indices of the preceding sum and of the choice of the last matrix.
    from: u32,
    choice: u32,
}

/// Returns one choice for each matrix and the total loss; `None` if even the smallest choices
/// exceed the budget.
pub(super) fn solve<T: Clone>(
    choices: &[Vec<Candidate<T>>],
    budget: u64,
) -> Option<(Vec<Candidate<T>>, f64)> {
    let smallest = |of: &Vec<Candidate<T>>| of.iter().map(|choice| choice.bytes).min();
    let mut needed = vec![0; choices.len() + 1];
    for (index, of) in choices.iter().enumerate().rev() {
        needed[index] = needed[index + 1] + smallest(of)?;
    }
    if needed[0] > budget {
        return None;
    }
    let mut lists: Vec<Vec<Sum>> = vec![vec![Sum {
        bytes: 0,
        loss: 0.0,
        from: 0,
        choice: 0,
    }]];
    for (of, behind) in choices.iter().zip(&needed[1..]) {
        let before = lists.last()?;
        let mut sums = Vec::with_capacity(before.len() * of.len());
        // One ascending run for each choice, which the sort merges.
        for (choice, add) in of.iter().enumerate() {
            for (from, sum) in before.iter().enumerate() {
                let bytes = sum.bytes + add.bytes;
                if bytes + behind <= budget {
                    sums.push(Sum {
                        bytes,
                        loss: sum.loss + add.loss,
                        from: from as u32,
                        choice: choice as u32,
                    });
                }
            }
        }
        sums.sort_by(|a, b| {
            let order = a.bytes.cmp(&b.bytes);
            let order = order.then(a.loss.total_cmp(&b.loss));
            order.then((a.from, a.choice).cmp(&(b.from, b.choice)))
        });
        retain_falling(&mut sums, |sum| sum.loss);
        thin(&mut sums, MAX_SUMS, |sum| sum.bytes);
        lists.push(sums);
    }
    let last = lists.last()?;
    let mut at = last.len().checked_sub(1)?;
    let lost = last[at].loss;
    let mut chosen = Vec::with_capacity(choices.len());
    for (of, list) in choices.iter().zip(&lists[1..]).rev() {
        let sum = list[at];
        chosen.push(of[sum.choice as usize].clone());
        at = sum.from as usize;
    }
    chosen.reverse();
    Some((chosen, lost))
}

fn thin<T: Clone>(sums: &mut Vec<T>, longest: usize, bytes: impl Fn(&T) -> u64) {
    let (Some(first), Some(last)) = (sums.first().map(&bytes), sums.last().cloned()) else {
        return;
    };
    if sums.len() <= longest {
        return;
    }
    let width = (bytes(&last) - first) / (longest as u64 - 1) + 1;
    let mut bucket = None;
    sums.retain(|sum| {
        let of = Some((bytes(sum) - first) / width);
        let new = of != bucket;
        bucket = of;
        new
    });
    if sums.last().is_some_and(|sum| bytes(sum) != bytes(&last)) {
        sums.push(last);
    }
}

/// Returns the Pareto-optimal sums of one choice for each matrix, smallest first; thinned above
/// [`MAX_GROUP_SUMS`].
pub(super) fn pareto_sums(choices: &[Vec<Candidate>]) -> Vec<Candidate<Vec<MatrixForm>>> {
    let mut all = vec![Candidate {
        form: Vec::new(),
        bytes: 0,
        loss: 0.0,
    }];
    for of in choices {
        let longer = all.iter().flat_map(|sum| {
            of.iter().map(move |add| Candidate {
                form: sum.form.iter().chain([&add.form]).cloned().collect(),
                bytes: sum.bytes + add.bytes,
                loss: sum.loss + add.loss,
            })
        });
        all = pareto_front(longer.collect());
        thin(&mut all, MAX_GROUP_SUMS, |sum| sum.bytes);
    }
    all
}

/// Repeatedly applies the larger choice that fits and reduces the loss most; returns the total
/// reduction.
pub(super) fn spend_remainder<T: Clone>(
    chosen: &mut [Candidate<T>],
    of: [&[Vec<Candidate<T>>]; 2],
    budget: u64,
) -> f64 {
    let taken: u64 = chosen.iter().map(|choice| choice.bytes).sum();
    let mut left = budget.saturating_sub(taken);
    let mut gained = 0.0;
    loop {
        let mut best: Option<(f64, usize, &Candidate<T>)> = None;
        for (index, now) in chosen.iter().enumerate() {
            let all = of.iter().filter_map(|choices| choices.get(index)).flatten();
            for choice in all.filter(|choice| choice.bytes <= now.bytes + left) {
                let gain = now.loss - choice.loss;
                if gain > best.as_ref().map_or(0.0, |(most, ..)| *most) {
                    best = Some((gain, index, choice));
                }
            }
        }
        let Some((gain, index, choice)) = best else {
            return gained;
        };
        left = left + chosen[index].bytes - choice.bytes;
        gained += gain;
        chosen[index] = choice.clone();
    }
}

#[cfg(test)]
mod tests;

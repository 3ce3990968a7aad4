//! Multiple-choice knapsack: selects one form for each matrix with the least total loss within a
//! byte budget.
//!
//! The solver keeps lists of Pareto-optimal sums (Nemhauser and Ullmann, "Discrete dynamic
//! programming and capital allocation", 1969) whose lower bound does not exceed the loss of a greedy
//! choice. It is exact while a list has at most [`MAX_SUMS`] sums; beyond, to the width of a bucket.

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

/// Returns the index of the choice with the least sum of loss and price of its bytes.
fn cheapest<T>(of: &[Candidate<T>], price: f64) -> usize {
    let costs = of.iter().map(|c| c.loss + price * c.bytes as f64);
    let least = costs.enumerate().min_by(|a, b| a.1.total_cmp(&b.1));
    least.map_or(0, |(index, _)| index)
}

/// Returns about the least price of a byte, in nats, at which the cheapest choices fit the budget.
fn price_of_byte<T>(choices: &[Vec<Candidate<T>>], budget: u64) -> f64 {
    let bytes = |price: f64| -> u64 {
        let taken = choices.iter().filter_map(|of| of.get(cheapest(of, price)));
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
    high.exp()
}

/// Keeps the choices around those that the budget's price selects, and the smallest.
pub(super) fn core<T>(mut choices: Vec<Vec<Candidate<T>>>, budget: u64) -> Vec<Vec<Candidate<T>>> {
    let price = price_of_byte(&choices, budget);
    for of in &mut choices {
        let taken = cheapest(of, price);
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

/// Returns lists of the Pareto-optimal sums of one choice for each of the first matrices, by their
/// count. Keeps a sum of the first `count` matrices if `keeps(count, sum)`; thins lists above
/// `longest`.
fn sums<T>(
    choices: &[Vec<Candidate<T>>],
    longest: usize,
    keeps: impl Fn(usize, &Sum) -> bool,
) -> Vec<Vec<Sum>> {
    let mut before = vec![Sum {
        bytes: 0,
        loss: 0.0,
        from: 0,
        choice: 0,
    }];
    let mut lists = Vec::with_capacity(choices.len() + 1);
    for (index, of) in choices.iter().enumerate() {
        let mut sums = Vec::new();
        // One ascending run for each choice, which the sort merges.
        for (choice, add) in of.iter().enumerate() {
            let longer = before.iter().enumerate().map(|(from, sum)| Sum {
                bytes: sum.bytes + add.bytes,
                loss: sum.loss + add.loss,
                from: from as u32,
                choice: choice as u32,
            });
            sums.extend(longer.filter(|sum| keeps(index + 1, sum)));
        }
        sums.sort_by(|a, b| {
            let order = a.bytes.cmp(&b.bytes);
            let order = order.then(a.loss.total_cmp(&b.loss));
            order.then((a.from, a.choice).cmp(&(b.from, b.choice)))
        });
        retain_falling(&mut sums, |sum| sum.loss);
        thin(&mut sums, longest, |sum| sum.bytes);
        lists.push(std::mem::replace(&mut before, sums));
    }
    lists.push(before);
    lists
}

/// Returns the choices of the sum `at` in the last of the lists of [`sums`].
fn chosen<T: Clone>(
    choices: &[Vec<Candidate<T>>],
    lists: &[Vec<Sum>],
    mut at: usize,
) -> Vec<Candidate<T>> {
    let mut chosen = Vec::with_capacity(choices.len());
    for (of, list) in choices.iter().zip(&lists[1..]).rev() {
        let sum = list[at];
        chosen.push(of[sum.choice as usize].clone());
        at = sum.from as usize;
    }
    chosen.reverse();
    chosen
}

/// Lower bound of the loss of all choices that continue a sum, by the price of a byte (Lagrange),
/// and an upper bound of the least loss.
struct LagrangianBound<T> {
    price: f64,
    budget: u64,
    /// Least sum of loss and price over the matrices after the first ones, by their count.
    remaining_cost: Vec<f64>,
    /// Choices that fit, and their loss, if the cheapest ones do.
    feasible: Option<(Vec<Candidate<T>>, f64)>,
    /// Loss of the feasible choices, plus a margin for rounding.
    upper_bound: f64,
}

impl<T: Clone> LagrangianBound<T> {
    fn new(choices: &[Vec<Candidate<T>>], budget: u64) -> Self {
        /// Rounding errors of sums, relative to their terms.
        const ROUNDING: f64 = 1e-9;
        let price = price_of_byte(choices, budget);
        let mut remaining_cost = vec![0.0; choices.len() + 1];
        let mut taken = Vec::with_capacity(choices.len());
        for (index, of) in choices.iter().enumerate().rev() {
            let choice = of.get(cheapest(of, price)).cloned();
            let cost = choice
                .as_ref()
                .map_or(0.0, |c| c.loss + price * c.bytes as f64);
            remaining_cost[index] = remaining_cost[index + 1] + cost;
            taken.extend(choice);
        }
        taken.reverse();
        let fits = taken.iter().map(|choice| choice.bytes).sum::<u64>() <= budget;
        let feasible = fits.then(|| {
            spend_remainder(&mut taken, [choices, &[]], budget);
            let loss: f64 = taken.iter().map(|choice| choice.loss).sum();
            (taken, loss)
        });
        let upper_bound = feasible.as_ref().map_or(f64::INFINITY, |(_, loss)| {
            loss + ROUNDING * (loss + price * budget as f64)
        });
        LagrangianBound {
            price,
            budget,
            remaining_cost,
            feasible,
            upper_bound,
        }
    }

    /// Returns true if a sum of the first `count` matrices may lead to the least loss.
    fn allows(&self, count: usize, sum: &Sum) -> bool {
        let left = self.budget.saturating_sub(sum.bytes) as f64;
        sum.loss + self.remaining_cost[count] - self.price * left <= self.upper_bound
    }
}

/// Returns one choice for each matrix and the total loss; `None` if even the smallest choices
/// exceed the budget.
pub(super) fn solve<T: Clone>(
    choices: &[Vec<Candidate<T>>],
    budget: u64,
) -> Option<(Vec<Candidate<T>>, f64)> {
    solve_with_lists(choices, budget, MAX_SUMS)
}

fn solve_with_lists<T: Clone>(
    choices: &[Vec<Candidate<T>>],
    budget: u64,
    longest: usize,
) -> Option<(Vec<Candidate<T>>, f64)> {
    let smallest = |of: &Vec<Candidate<T>>| of.iter().map(|choice| choice.bytes).min();
    let mut needed = vec![0; choices.len() + 1];
    for (index, of) in choices.iter().enumerate().rev() {
        needed[index] = needed[index + 1] + smallest(of)?;
    }
    if needed[0] > budget {
        return None;
    }
    let bound = LagrangianBound::new(choices, budget);
    let lists = sums(choices, longest, |count, sum| {
        sum.bytes + needed[count] <= budget && bound.allows(count, sum)
    });
    let last = lists.last()?;
    let found = last
        .last()
        .map(|sum| (chosen(choices, &lists, last.len() - 1), sum.loss));
    // Thinned lists may have lost what led to less.
    match (found, bound.feasible) {
        (Some(found), Some(feasible)) if feasible.1 < found.1 => Some(feasible),
        (None, feasible) => feasible,
        (found, _) => found,
    }
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
    let lists = sums(choices, MAX_GROUP_SUMS, |_, _| true);
    let last = lists.last().map_or(&[][..], Vec::as_slice);
    let all = last.iter().enumerate().map(|(at, sum)| Candidate {
        form: chosen(choices, &lists, at)
            .into_iter()
            .map(|choice| choice.form)
            .collect(),
        bytes: sum.bytes,
        loss: sum.loss,
    });
    all.collect()
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

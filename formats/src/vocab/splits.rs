//! Pairs of texts that make a third one, in time proportional to the texts: a text may be as long
//! as its file, so that no part of it is hashed.

/// Calls `visit` with the indices of a text and of both its parts, for every text that two others
/// make, until it returns false. Returns false if it did. Of equal texts, the last is a part.
pub(super) fn all_splits(
    texts: &[&str],
    mut visit: impl FnMut(usize, usize, usize) -> bool,
) -> bool {
    let starts = longest_prefixes(texts);
    let reversed = texts.iter().map(|text| text.bytes().rev().collect());
    let ends = longest_prefixes(&reversed.collect::<Vec<Vec<u8>>>());
    let mut suffixes = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        // The longer the prefix, the shorter the suffix.
        suffixes.clear();
        suffixes.extend(chain(&ends, index));
        for left in chain(&starts, index) {
            let rest = text.len() - texts[left].len();
            while let Some(&right) = suffixes.last() {
                let found = texts[right].len();
                if found == rest && !visit(index, left, right) {
                    return false;
                }
                if found > rest {
                    break;
                }
                suffixes.pop();
            }
        }
    }
    true
}

/// Follows the links of [`longest_prefixes`], to ever shorter texts.
fn chain(links: &[Option<usize>], index: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(links[index], |&index| links[index])
}

/// Returns for every text the longest other one that it begins with, but for itself and the empty
/// text; of equal texts, the last.
fn longest_prefixes<T: AsRef<[u8]>>(texts: &[T]) -> Vec<Option<usize>> {
    let text = |index: usize| texts[index].as_ref();
    let mut order: Vec<usize> = (0..texts.len()).collect();
    order.sort_unstable_by(|&one, &other| (text(one), one).cmp(&(text(other), other)));
    let mut links = vec![None; texts.len()];
    // Each is a prefix of the next, and the last of the texts that are equal to it.
    let mut open: Vec<usize> = Vec::new();
    for index in order {
        let own = text(index);
        while let Some(&last) = open.last() {
            if own.starts_with(text(last)) && own.len() > text(last).len() {
                links[index] = Some(last);
                break;
            }
            open.pop();
        }
        if !own.is_empty() {
            open.push(index);
        }
    }
    links
}

#[cfg(test)]
mod tests {
    use super::*;

    fn splits(texts: &[&str]) -> Vec<(usize, usize, usize)> {
        let mut found = Vec::new();
        assert!(all_splits(texts, |text, left, right| {
            found.push((text, left, right));
            true
        }));
        found.sort_unstable();
        found
    }

    #[test]
    fn all_pairs_are_found() {
        let texts = ["", "a", "ä", "ab", "b", "aba", "ba", "äa", "b", "aa", "c"];
        // The later "b", never the empty text.
        let expected = [
            (3, 1, 8),
            (5, 1, 6),
            (5, 3, 1),
            (6, 8, 1),
            (7, 2, 1),
            (9, 1, 1),
        ];
        assert_eq!(splits(&texts), expected);
        assert!(!all_splits(&texts, |text, _, _| text != 5));
    }

    #[test]
    fn long_texts_take_little_time() {
        let long = "a".repeat(1 << 24);
        assert_eq!(splits(&[&long, "a", &long[1..]]), [(0, 1, 2), (0, 2, 1)]);
    }
}

//! Keys and values of one layer.

use crate::error::{ShapeError, expect, product};

/// A view of the keys and values of one layer, each `[kv_heads, capacity, head_size]`: the
/// positions of one head lie together, so that a decoding step reads each head as one stream.
///
/// Position `p` of head `h` starts at number `(h * capacity + p) * head_size`. Which positions
/// are valid is the caller's to know; kernels read positions `0 .. len` only.
#[derive(Clone, Copy, Debug)]
pub struct KvView<'a> {
    keys: &'a [f32],
    values: &'a [f32],
    kv_heads: usize,
    head_size: usize,
    capacity: usize,
}

impl<'a> KvView<'a> {
    /// A view over exactly `kv_heads * capacity * head_size` keys and as many values.
    ///
    /// # Errors
    /// When `keys` or `values` has another length, or `kv_heads` or `head_size` is 0.
    pub fn new(
        keys: &'a [f32],
        values: &'a [f32],
        kv_heads: usize,
        head_size: usize,
        capacity: usize,
    ) -> Result<Self, ShapeError> {
        let len = product("keys (numbers)", &[kv_heads, capacity, head_size])?;
        expect("keys (numbers)", len, keys.len())?;
        expect("values (numbers)", len, values.len())?;
        for (what, found) in [
            ("kv heads, at least", kv_heads),
            ("head size, at least", head_size),
        ] {
            if found == 0 {
                return Err(ShapeError {
                    what,
                    expected: 1,
                    found,
                });
            }
        }
        Ok(KvView {
            keys,
            values,
            kv_heads,
            head_size,
            capacity,
        })
    }

    /// Number of kv heads.
    pub fn kv_heads(&self) -> usize {
        self.kv_heads
    }

    /// Numbers in one key, and in one value.
    pub fn head_size(&self) -> usize {
        self.head_size
    }

    /// Positions there is room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Keys and values `[capacity, head_size]` of one head.
    ///
    /// # Panics
    /// When `head >= kv_heads()`, as indexing does.
    pub fn head(&self, head: usize) -> (&'a [f32], &'a [f32]) {
        let len = self.capacity * self.head_size;
        let range = head * len..(head + 1) * len;
        (&self.keys[range.clone()], &self.values[range])
    }

    /// The number of query heads, after a check of `q [n, heads, head_size]` at positions
    /// `position ..` and of `out`.
    pub(crate) fn check_queries(
        &self,
        q: usize,
        n: usize,
        position: usize,
        out: usize,
    ) -> Result<usize, ShapeError> {
        expect("out (numbers)", q, out)?;
        let group = product("q (numbers)", &[n, self.kv_heads, self.head_size])?;
        crate::error::expect_rows("q (numbers, a multiple of the kv heads)", group, q)?;
        let end = position.saturating_add(n);
        if end > self.capacity {
            return Err(ShapeError {
                what: "positions (at most)",
                expected: self.capacity,
                found: end,
            });
        }
        Ok(q.checked_div(n * self.head_size).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        let buffer = [0.0; 24];
        let kv = KvView::new(&buffer, &buffer, 2, 3, 4).unwrap();
        assert_eq!(kv.check_queries(12, 1, 3, 12), Ok(4));
        assert_eq!(kv.check_queries(0, 0, 0, 0), Ok(0));
        assert!(kv.check_queries(12, 1, 4, 12).is_err());
        assert!(kv.check_queries(12, usize::MAX, 4, 12).is_err());
        assert!(kv.check_queries(9, 1, 0, 9).is_err());
        assert!(kv.check_queries(12, 1, 0, 11).is_err());
        assert!(KvView::new(&buffer, &buffer[1..], 2, 3, 4).is_err());
        assert!(KvView::new(&[], &[], 0, 3, 4).is_err());
        assert!(KvView::new(&[], &[], 2, 0, 4).is_err());
        assert!(KvView::new(&buffer, &buffer, usize::MAX, 3, 4).is_err());
    }
}

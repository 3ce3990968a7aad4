//! Queue of rejections to learn from.

use std::collections::VecDeque;

/// Bounded queue that drops its oldest items.
#[derive(Debug)]
pub struct BoundedQueue<T> {
    waiting: VecDeque<T>,
    capacity: usize,
    dropped: u64,
}

impl<T> BoundedQueue<T> {
    /// Creates a queue with this capacity, at least one.
    pub fn new(most: usize) -> Self {
        BoundedQueue {
            waiting: VecDeque::new(),
            capacity: most.max(1),
            dropped: 0,
        }
    }

    pub fn push(&mut self, item: T) {
        if self.waiting.len() == self.capacity {
            self.waiting.pop_front();
            self.dropped += 1;
        }
        self.waiting.push_back(item);
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Removes and returns all items, the oldest first.
    pub fn drain(&mut self) -> VecDeque<T> {
        std::mem::take(&mut self.waiting)
    }

    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests;

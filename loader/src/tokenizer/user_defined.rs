//! Splitting of a text at its user-defined tokens: the longest first, everywhere, left to right;
//! then the next one in the remaining fragments. All occurrences are found in one pass by an
//! Aho-Corasick automaton (1975).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::ops::Range;

use super::ABSENT;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fragment<'a> {
    Text(&'a str),
    Token(u32),
}

#[derive(Clone, Copy, Debug)]
struct Node {
    parent: u32,
    byte: u8,
    /// In bytes.
    depth: u32,
    /// Node of the longest proper suffix in the trie.
    suffix: u32,
    /// Node of the longest token that ends here: this one, or one along the suffix links.
    longest: u32,
    /// `ABSENT` if none has exactly this text.
    token: u32,
}

#[derive(Clone, Debug)]
pub(super) struct TokenMatcher {
    nodes: Vec<Node>,
    edges: HashMap<(u32, u8), u32>,
}

/// Occurrence; the greatest is considered next.
type Occurrence = (u32, Reverse<u32>, Reverse<usize>, u32);

impl TokenMatcher {
    /// Ids are ascending, texts distinct; empty texts are ignored.
    pub(super) fn new<'a>(tokens: impl Iterator<Item = (u32, &'a str)>) -> Self {
        let root = Node {
            parent: 0,
            byte: 0,
            depth: 0,
            suffix: 0,
            longest: ABSENT,
            token: ABSENT,
        };
        let mut automaton = Self {
            nodes: vec![root],
            edges: HashMap::new(),
        };
        for (id, text) in tokens.filter(|(_, text)| !text.is_empty()) {
            let mut node = 0;
            for byte in text.bytes() {
                node = automaton.child(node, byte);
            }
            automaton.nodes[node as usize].token = id;
        }
        automaton.link();
        automaton
    }

    fn child(&mut self, node: u32, byte: u8) -> u32 {
        let new = self.nodes.len() as u32;
        let child = *self.edges.entry((node, byte)).or_insert(new);
        if child == new {
            let depth = self.nodes[node as usize].depth + 1;
            let leaf = Node {
                parent: node,
                byte,
                depth,
                suffix: 0,
                longest: ABSENT,
                token: ABSENT,
            };
            self.nodes.push(leaf);
        }
        child
    }

    /// Shorter nodes first, because longer ones depend on them.
    fn link(&mut self) {
        let mut order = Vec::from_iter(1..self.nodes.len() as u32);
        order.sort_by_key(|&node| self.nodes[node as usize].depth);
        for index in order {
            let node = self.nodes[index as usize];
            let suffix = if node.parent == 0 {
                0
            } else {
                self.step(self.nodes[node.parent as usize].suffix, node.byte)
            };
            let longest = if node.token == ABSENT {
                self.nodes[suffix as usize].longest
            } else {
                index
            };
            self.nodes[index as usize] = Node {
                suffix,
                longest,
                ..node
            };
        }
    }

    fn step(&self, mut state: u32, byte: u8) -> u32 {
        loop {
            if let Some(&next) = self.edges.get(&(state, byte)) {
                return next;
            }
            if state == 0 {
                return 0;
            }
            state = self.nodes[state as usize].suffix;
        }
    }

    #[cfg(test)]
    pub(super) fn split<'a>(&self, text: &'a str) -> Vec<Fragment<'a>> {
        self.split_where(text, |_, _| true)
    }

    /// Cuts only at occurrences that are `allowed` by byte range and id.
    pub(super) fn split_where<'a>(
        &self,
        text: &'a str,
        allowed: impl Fn(&Range<usize>, u32) -> bool,
    ) -> Vec<Fragment<'a>> {
        let mut fragments = Vec::new();
        let mut done = 0;
        for (start, (end, token)) in self.select_occurrences(text, allowed) {
            if start > done {
                fragments.push(Fragment::Text(&text[done..start]));
            }
            fragments.push(Fragment::Token(token));
            done = end;
        }
        if done < text.len() {
            fragments.push(Fragment::Text(&text[done..]));
        }
        fragments
    }

    fn select_occurrences(
        &self,
        text: &str,
        allowed: impl Fn(&Range<usize>, u32) -> bool,
    ) -> BTreeMap<usize, (usize, u32)> {
        let mut chosen = BTreeMap::new();
        if self.edges.is_empty() {
            return chosen;
        }
        let mut queue = BinaryHeap::new();
        let mut state = 0;
        for (at, byte) in text.bytes().enumerate() {
            state = self.step(state, byte);
            queue.extend(self.occurrence(self.nodes[state as usize].longest, at + 1));
        }
        while let Some((len, Reverse(token), Reverse(start), node)) = queue.pop() {
            let end = start + len as usize;
            let before = chosen
                .range(..end)
                .next_back()
                .map_or(0, |(_, &(end, _))| end);
            if before <= start && allowed(&(start..end), token) {
                chosen.insert(start, (end, token));
            } else if before <= start {
                let suffix = self.nodes[node as usize].suffix;
                queue.extend(self.occurrence(self.nodes[suffix as usize].longest, end));
            } else if before < end {
                // This one overlaps a selected token; a shorter one may not.
                let mut shorter = node;
                while shorter != ABSENT
                    && self.nodes[shorter as usize].depth as usize > end - before
                {
                    let suffix = self.nodes[shorter as usize].suffix;
                    shorter = self.nodes[suffix as usize].longest;
                }
                queue.extend(self.occurrence(shorter, end));
            }
        }
        chosen
    }

    fn occurrence(&self, node: u32, end: usize) -> Option<Occurrence> {
        let Node { depth, token, .. } = *self.nodes.get(node as usize)?;
        Some((depth, Reverse(token), Reverse(end - depth as usize), node))
    }
}

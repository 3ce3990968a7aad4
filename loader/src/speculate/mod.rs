//! Speculative decoding: a cheaper model drafts tokens, and the model itself reads them in one pass and keeps those that
//! it would have written (Leviathan, Kalman and Matias 2023; Chen et al. 2023).
//!
//! The draft is the same model with less of its weights, which shares the mapping and the keys and values of what was
//! kept, or another model with the same vocabulary. What is written is the model's own: without temperature token for
//! token, because a pass over several positions has the bits of single steps ([`Session::verify`]), and with
//! one in distribution, by the rule of [`Sampler::judge`]. Keys and values of tokens that were not kept are cut
//! off; nothing is computed again.

mod pace;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use htc_formats::vocab::Vocabulary;
use thiserror::Error;

use crate::adapt::{AdaptError, Adaptation, Seen};
use crate::backend::{Backend, Cpu};
use crate::dial::Setting;
use crate::error::ExecError;
use crate::exec::{Adapted, Session};
use crate::generate::GenerateError;
use crate::sampling::{Distribution, Judged, Sampler};

use pace::Pace;
pub use pace::{DraftLength, LONGEST_DRAFT};

/// Why a model cannot draft for another.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SpeculateError {
    /// Token ids do not mean the same.
    #[error(
        "the draft has another tokenizer: {what}; a draft and the model it drafts for need one vocabulary, take a \
         smaller artifact of the same model"
    )]
    Tokenizer {
        /// The first difference.
        what: String,
    },
    /// Logits of another number of tokens.
    #[error("the draft has {found} tokens in its vocabulary, expected {expected} as the model has")]
    Vocabulary {
        /// Rows of the model's head.
        expected: usize,
        /// Rows of the draft's.
        found: usize,
    },
    /// A draft of more tokens than are allowed, or of none.
    #[error("a draft has 1 to {LONGEST_DRAFT} tokens, found {0}")]
    Length(usize),
    /// The session has read what the draft has not.
    #[error(
        "the session has read {found} positions and its draft knows {expected} of them; begin both together"
    )]
    Position {
        /// Positions that the draft knows.
        expected: usize,
        /// Positions of the session.
        found: usize,
    },
    /// The draft cannot learn.
    #[error(transparent)]
    Adapt(#[from] AdaptError),
}

/// Where two vocabularies differ first; `None` where a token means the same in both.
pub fn vocabularies_differ(one: &Vocabulary, other: &Vocabulary) -> Option<String> {
    let numbers = [
        ("tokens", one.tokens.len(), other.tokens.len()),
        ("merges", one.merges.len(), other.merges.len()),
    ];
    for (what, one, other) in numbers {
        if one != other {
            return Some(format!("{one} {what} there, {other} here"));
        }
    }
    if one.model != other.model {
        return Some(format!(
            "its kind is {} there, {} here",
            one.model, other.model
        ));
    }
    let mut tokens = one.tokens.iter().zip(&other.tokens).enumerate();
    if let Some((token, (one, other))) = tokens.find(|(_, (one, other))| one != other) {
        let escape = |text: &str| text.escape_debug().to_string();
        let (one, other) = (escape(one), escape(other));
        return Some(format!(
            "token {token} is \"{one}\" there, \"{other}\" here"
        ));
    }
    let special = |v: &Vocabulary| (v.bos, v.eos, v.add_bos, v.pre);
    (special(one) != special(other)).then(|| "special tokens or the way to split words".to_owned())
}

/// What drafting did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Speculated {
    /// Passes of the model that checked a draft.
    pub rounds: u64,
    /// Tokens that were drafted.
    pub drafted: u64,
    /// Of these, the ones that were kept.
    pub accepted: u64,
    /// Tokens that were written without a draft: because it did not pay, there was no room, or to know what that takes.
    pub alone: u64,
    /// Time that drafting took.
    pub draft: Duration,
    /// Time that passes of the model took.
    pub verify: Duration,
    /// Of this, the time of those without a draft.
    pub alone_time: Duration,
}

impl Speculated {
    /// The part of the drafted tokens that was kept; `None` where none was drafted.
    pub fn acceptance(&self) -> Option<f64> {
        (self.drafted > 0).then(|| self.accepted as f64 / self.drafted as f64)
    }

    /// Tokens a second, those without a draft among them, over tokens a second without any; `None` where no token was written
    /// without one, so that this is not known. What learning took is not counted.
    pub fn speed_up(&self) -> Option<f64> {
        let tokens = (self.alone + self.rounds + self.accepted) as f64;
        let without = self.alone_time.as_secs_f64() / self.alone as f64;
        let found = tokens * without / (self.draft + self.verify).as_secs_f64();
        (self.rounds > 0 && self.alone > 0 && found.is_finite()).then_some(found)
    }
}

/// What drafts.
enum Drafter<B: Backend> {
    /// The model itself.
    Own {
        setting: Setting,
        /// What the draft uses in the place of parts of it.
        adapted: Option<Box<Adapted<B>>>,
    },
    /// Another model.
    Other(Box<Session<B>>),
}

/// Drafts for a session. One belongs to one sequence.
pub struct Speculator<B: Backend = Cpu> {
    drafter: Drafter<B>,
    pace: Pace,
    /// Draws of the draft, from a generator of its own.
    sampler: Sampler,
    /// Tokens that the session has read.
    read: Vec<u32>,
    drafted: Vec<u32>,
    drafts: Vec<Distribution>,
    own: Distribution,
    adaptation: Option<Box<Adaptation>>,
    done: Speculated,
}

impl<B: Backend> Speculator<B> {
    /// The model of a session drafts for itself, with less of its weights.
    ///
    /// `sampler` is the one that will choose tokens.
    ///
    /// # Errors
    /// [`SpeculateError::Length`].
    pub fn own(
        setting: Setting,
        length: DraftLength,
        sampler: &Sampler,
    ) -> Result<Self, SpeculateError> {
        let adapted = None;
        Speculator::new(Drafter::Own { setting, adapted }, length, sampler)
    }

    /// Another model drafts: its session, which has read nothing, for one of `model`. Its keys and values may be
    /// stored as any kind: what a kind loses costs drafts that are not kept, and no token of the text.
    ///
    /// # Errors
    /// [`SpeculateError`] for another vocabulary, or a length out of range.
    pub fn other(
        draft: Session<B>,
        model: &crate::Model<B>,
        length: DraftLength,
        sampler: &Sampler,
    ) -> Result<Self, SpeculateError> {
        let (expected, found) = (model.hyper().vocabulary, draft.model().hyper().vocabulary);
        if expected != found {
            return Err(SpeculateError::Vocabulary { expected, found });
        }
        let vocabularies = [draft.model().file(), model.file()].map(|file| &file.vocabulary);
        let differs = match vocabularies {
            [Ok(one), Ok(other)] => vocabularies_differ(one, other),
            // Both may be without one, where tokens are all there is.
            [Err(one), Err(other)] => (one.to_string() != other.to_string())
                .then(|| format!("it cannot be read: {one}; and there: {other}")),
            [Err(error), Ok(_)] => Some(format!("that of the draft cannot be read: {error}")),
            [Ok(_), Err(error)] => Some(format!("that of the model cannot be read: {error}")),
        };
        if let Some(what) = differs {
            return Err(SpeculateError::Tokenizer { what });
        }
        if draft.position() != 0 {
            let (expected, found) = (0, draft.position());
            return Err(SpeculateError::Position { expected, found });
        }
        Speculator::new(Drafter::Other(Box::new(draft)), length, sampler)
    }

    fn new(
        drafter: Drafter<B>,
        length: DraftLength,
        sampler: &Sampler,
    ) -> Result<Self, SpeculateError> {
        if let DraftLength::Fixed(length) = length
            && !(1..=LONGEST_DRAFT).contains(&length)
        {
            return Err(SpeculateError::Length(length));
        }
        Ok(Speculator {
            drafter,
            pace: Pace::new(length),
            sampler: sampler.apart(),
            read: Vec::new(),
            drafted: Vec::new(),
            drafts: Vec::new(),
            own: Distribution::default(),
            adaptation: None,
            done: Speculated::default(),
        })
    }

    /// Lets the draft learn from what was not kept.
    pub fn with_adaptation(mut self, adaptation: Adaptation) -> Self {
        self.adaptation = Some(Box::new(adaptation));
        self
    }

    /// What the draft learns with.
    pub fn adaptation(&self) -> Option<&Adaptation> {
        self.adaptation.as_deref()
    }

    /// What was done so far.
    pub fn done(&self) -> Speculated {
        self.done
    }

    /// The session of another model that drafts.
    pub fn draft_session(&self) -> Option<&Session<B>> {
        match &self.drafter {
            Drafter::Own { .. } => None,
            Drafter::Other(draft) => Some(draft),
        }
    }

    /// The same, for who measures it with what it learnt: its sequence is that of the draft, so that
    /// [`reset`](Speculator::reset) is due before and behind it.
    pub fn draft_session_mut(&mut self) -> Option<&mut Session<B>> {
        match &mut self.drafter {
            Drafter::Own { .. } => None,
            Drafter::Other(draft) => Some(draft),
        }
    }

    /// Takes tokens that the session has read, as a prompt; another model reads them, too.
    ///
    /// # Errors
    /// [`ExecError`] of the draft.
    pub(crate) fn read(&mut self, tokens: &[u32]) -> Result<(), ExecError> {
        self.read.extend_from_slice(tokens);
        if let Drafter::Other(draft) = &mut self.drafter {
            // No further than where one more can be drafted behind them.
            let room = draft.limit().min(self.read.len());
            let behind = self.read.get(draft.position()..room).unwrap_or(&[]);
            if !behind.is_empty() {
                draft.read_prompt(behind)?;
            }
        }
        Ok(())
    }

    /// Forgets the sequence, as [`Session::reset`] does; what was measured stays.
    pub fn reset(&mut self) {
        self.read.clear();
        if let Drafter::Other(draft) = &mut self.drafter {
            draft.reset();
        }
    }

    /// Positions that were read.
    pub(crate) fn position(&self) -> usize {
        self.read.len()
    }

    /// Forgets what was read from this position on.
    pub(crate) fn truncate(&mut self, position: usize) -> Result<(), ExecError> {
        self.read.truncate(position);
        match &mut self.drafter {
            Drafter::Other(draft) if draft.position() > position => draft.truncate(position),
            _ => Ok(()),
        }
    }

    /// Writes at least one token behind `unread`, which the session has not read, at most `most`: into `out`. The session
    /// has then read all but the last.
    ///
    /// # Errors
    /// [`GenerateError`].
    pub(crate) fn round(
        &mut self,
        session: &mut Session<B>,
        sampler: &mut Sampler,
        unread: u32,
        most: usize,
        out: &mut VecDeque<u32>,
    ) -> Result<(), GenerateError> {
        let start = session.position();
        let room = session.limit().saturating_sub(start + 1);
        let most = most.saturating_sub(1).min(room).min(session.batch() - 1);
        let length = self.pace.next(most.min(self.draft_room()), self.behind());
        let mut seen = match length {
            0 => None,
            _ => self.adaptation.as_deref().map(Adaptation::look),
        };
        self.refresh(session, length)?;
        if length > 0 {
            let begun = Instant::now();
            self.catch_up()?;
            self.done.draft += begun.elapsed();
        }
        let begun = Instant::now();
        self.draft(session, unread, length, &mut seen)?;
        let draft = begun.elapsed();
        let begun = Instant::now();
        let mut row = vec![unread];
        row.extend_from_slice(&self.drafted);
        let logits = match &mut seen {
            Some(seen) => session.verify(&row, seen.verifier())?,
            None => session.verify(&row, &mut ())?,
        };
        let width = logits.len() / row.len();
        let (mut accepted, mut next) = (0, None);
        for (logits, draft) in logits.chunks_exact(width).zip(&self.drafts[..length]) {
            let token = self.drafted[accepted];
            sampler.distribution(logits, &mut self.own)?;
            match sampler.judge(&self.own, draft, token) {
                Judged::Accepted => accepted += 1,
                Judged::Replaced(token) => {
                    next = Some(token);
                    break;
                }
            }
        }
        let last = &logits[accepted * width..][..width];
        let next = match next {
            Some(token) => token,
            None => sampler.sample(last)?,
        };
        let mut seen = seen.filter(|_| accepted < length);
        if let Some(seen) = &mut seen {
            seen.rejected(last);
        }
        let verify = begun.elapsed();
        session.truncate(start + 1 + accepted)?;
        self.read.push(unread);
        self.read.extend_from_slice(&self.drafted[..accepted]);
        let read = self.read.len();
        self.truncate(read)?;
        out.extend(&self.drafted[..accepted]);
        out.push_back(next);
        self.note(length, accepted, draft, verify);
        if let (Some(adaptation), Some(seen)) = (self.adaptation.as_deref_mut(), seen) {
            adaptation.learn(seen, accepted);
        }
        Ok(())
    }

    /// Tokens that were kept and another model that drafts has not read.
    fn behind(&self) -> usize {
        match &self.drafter {
            Drafter::Own { .. } => 0,
            Drafter::Other(draft) => self.read.len().saturating_sub(draft.position()),
        }
    }

    /// Lets another model read what was written without it: that is time spent on drafting, and no cost of a drafted token.
    fn catch_up(&mut self) -> Result<(), ExecError> {
        // One is behind wherever all of a draft was kept, and is read with the next.
        if self.behind() > 1
            && let Drafter::Other(draft) = &mut self.drafter
        {
            let batch = draft.batch();
            for tokens in self.read[draft.position()..].chunks(batch) {
                draft.forward(tokens)?;
            }
        }
        Ok(())
    }

    /// Tokens that the draft has room for.
    fn draft_room(&self) -> usize {
        match &self.drafter {
            Drafter::Own { .. } => usize::MAX,
            Drafter::Other(draft) => draft.limit().saturating_sub(self.read.len() + 1),
        }
    }

    /// Drafts so many tokens behind what was read and `unread`; a session that drafts for itself is then as before.
    fn draft(
        &mut self,
        session: &mut Session<B>,
        unread: u32,
        length: usize,
        seen: &mut Option<Seen>,
    ) -> Result<(), GenerateError> {
        self.drafted.clear();
        if self.drafts.len() < length {
            self.drafts.resize_with(length, Distribution::default);
        }
        if length == 0 {
            return Ok(());
        }
        let start = session.position();
        let (own, mut behind) = match &mut self.drafter {
            Drafter::Own { setting, adapted } => {
                let before = session.setting();
                session.set(*setting);
                session.adapt(adapted.take());
                (Some(before), vec![unread])
            }
            Drafter::Other(draft) => {
                let mut behind = self.read[draft.position()..].to_vec();
                behind.push(unread);
                (None, behind)
            }
        };
        let drafting = match &mut self.drafter {
            Drafter::Own { .. } => &mut *session,
            Drafter::Other(draft) => draft,
        };
        let mut outcome = Ok(());
        for draft in &mut self.drafts[..length] {
            let step = step(drafting, &mut self.sampler, &behind, draft, seen);
            match step {
                Ok(token) => {
                    self.drafted.push(token);
                    behind = vec![token];
                }
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        if let (Some(before), Drafter::Own { adapted, .. }) = (own, &mut self.drafter) {
            *adapted = session.adapt(None);
            session.set(before);
            session.truncate(start)?;
        }
        outcome
    }

    fn note(&mut self, length: usize, accepted: usize, draft: Duration, verify: Duration) {
        self.pace.note(length, accepted, draft, verify);
        let done = &mut self.done;
        if length > 0 {
            done.rounds += 1;
            done.draft += draft;
        } else {
            done.alone += 1;
            done.alone_time += verify;
        }
        done.drafted += length as u64;
        done.accepted += accepted as u64;
        done.verify += verify;
    }

    /// Takes up what was learnt, before a draft of so many tokens.
    fn refresh(&mut self, session: &mut Session<B>, length: usize) -> Result<(), GenerateError> {
        let Some(adaptation) = self.adaptation.as_deref_mut().filter(|_| length > 0) else {
            return Ok(());
        };
        let new = match &mut self.drafter {
            Drafter::Own { setting, .. } => {
                // As much of the head as the draft reads.
                let before = session.setting();
                session.set(*setting);
                let new = adaptation.refresh(session);
                session.set(before);
                new
            }
            Drafter::Other(draft) => adaptation.refresh(draft),
        };
        let Some(new) = new.map_err(SpeculateError::from)? else {
            return Ok(());
        };
        match &mut self.drafter {
            Drafter::Own { adapted, .. } => *adapted = Some(new),
            Drafter::Other(draft) => drop(draft.adapt(Some(new))),
        }
        Ok(())
    }
}

/// One token behind `tokens`, with what it was drawn from.
fn step<B: Backend>(
    session: &mut Session<B>,
    sampler: &mut Sampler,
    tokens: &[u32],
    from: &mut Distribution,
    seen: &mut Option<Seen>,
) -> Result<u32, GenerateError> {
    if let Some(seen) = seen {
        let width = session.model().hyper().width;
        for batch in tokens.chunks(session.batch()) {
            session.forward_with(batch, seen.draft())?;
        }
        seen.end_step(session, width)?;
        sampler.distribution(session.last_logits()?, from)?;
    } else {
        let logits = session.step_for(tokens, sampler.wants())?;
        sampler.distribution_from(logits, from)?;
    }
    Ok(sampler.draw_from(from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_speed_up_is_over_what_tokens_take_without_a_draft() {
        let ms = Duration::from_millis;
        let done = Speculated {
            rounds: 2,
            drafted: 8,
            accepted: 6,
            alone: 4,
            draft: ms(10),
            verify: ms(60),
            alone_time: ms(40),
        };
        // 12 tokens in 70 ms, each of which takes 10 ms without.
        assert!((done.speed_up().unwrap() - 120.0 / 70.0).abs() < 1e-12);
        assert_eq!(done.acceptance(), Some(0.75));
        for unknown in [
            Speculated { alone: 0, ..done },
            Speculated { rounds: 0, ..done },
            Speculated::default(),
        ] {
            assert_eq!(unknown.speed_up(), None);
        }
    }
}

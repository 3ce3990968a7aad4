//! Location of message contents in a rendered conversation.
//!
//! Users may spell control tokens too. The conversation is therefore rendered twice: as it is, and
//! with two marker characters around every message that occur nowhere else. If both texts agree
//! without the markers, these locate the contents; otherwise the locations are unknown.

use std::ops::Range;

use super::Conversation;

/// Rendered conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedConversation {
    /// Text up to the start of the model's answer.
    pub text: String,
    /// Ascending ranges of message contents in the text; `None` if unknown.
    pub content_ranges: Option<Vec<Range<usize>>>,
}

/// Renders a conversation by `render`.
///
/// # Errors
/// Those of `render`.
pub fn render_with_ranges<E>(
    conversation: &Conversation,
    render: impl Fn(&Conversation) -> Result<String, E>,
) -> Result<RenderedConversation, E> {
    let text = render(conversation)?;
    let said = unused_markers(conversation).and_then(|marks| {
        // A template may fail on the markers.
        let marked = render(&with_markers(conversation, marks)).ok()?;
        marked_ranges(&marked, marks, &text)
    });
    Ok(RenderedConversation {
        text,
        content_ranges: said,
    })
}

fn unused_markers(conversation: &Conversation) -> Option<[char; 2]> {
    let Conversation {
        template,
        messages,
        bos,
        eos,
    } = conversation;
    let texts = || {
        let contents = messages.iter().map(|message| &message.content);
        [template, bos, eos].into_iter().chain(contents)
    };
    let candidates = ('\u{fdd0}'..='\u{fdef}').chain('\u{f0000}'..='\u{f00ff}');
    let mut free = candidates.filter(|&mark| !texts().any(|text| text.contains(mark)));
    Some([free.next()?, free.next()?])
}

/// Surrounding spaces stay outside, for templates that trim.
fn with_markers(conversation: &Conversation, [begin, end]: [char; 2]) -> Conversation {
    let mut marked = conversation.clone();
    for message in &mut marked.messages {
        let content = &message.content;
        let words = content.trim();
        if words.is_empty() {
            continue;
        }
        let start = content.len() - content.trim_start().len();
        let (before, after) = (&content[..start], &content[start + words.len()..]);
        message.content = format!("{before}{begin}{words}{end}{after}");
    }
    marked
}

fn marked_ranges(marked: &str, [begin, end]: [char; 2], text: &str) -> Option<Vec<Range<usize>>> {
    let mut said = Vec::new();
    let mut open = None;
    let mut at = 0;
    for character in marked.chars() {
        if character == begin {
            if open.replace(at).is_some() {
                return None;
            }
        } else if character == end {
            said.push(open.take()?..at);
        } else {
            if !text[at..].starts_with(character) {
                return None;
            }
            at += character.len_utf8();
        }
    }
    (open.is_none() && at == text.len()).then_some(said)
}

#[cfg(test)]
mod tests;

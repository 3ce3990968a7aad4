//! Conversations as tokens.

use std::path::Path;

use htc_loader::tokenizer::{AddSpecialTokens, Tokenizer};

use super::{Failure, InFile as _};
use crate::app::chat::{self, Conversation, Message, RenderedConversation};

/// Renders messages by the model's chat template, after the system message if there is one, up to the
/// start of the model's answer; only text of the template itself becomes control tokens.
pub(super) fn encode(
    path: &Path,
    tokenizer: &Tokenizer,
    system: Option<&str>,
    messages: &[Message],
) -> Result<Vec<u32>, Failure> {
    let system = system.map(Message::system).into_iter();
    let messages = system.chain(messages.iter().cloned()).collect();
    let vocabulary = tokenizer.vocabulary();
    let template = vocabulary.chat_template.clone();
    let template = template.filter(|template| !template.trim().is_empty());
    let template = template.ok_or(Failure::NoTemplate).in_file(path)?;
    let text_of = |token: Option<u32>| -> String {
        let piece = token.and_then(|token| tokenizer.piece(token));
        piece.unwrap_or_default().to_owned()
    };
    let conversation = Conversation {
        template,
        messages,
        bos: text_of(vocabulary.bos),
        eos: text_of(vocabulary.eos),
    };
    let RenderedConversation {
        text,
        content_ranges,
    } = chat::render_with_ranges(&conversation, |conversation| {
        let rendered = chat::render(conversation).map_err(Failure::TemplateProcess)?;
        rendered.map_err(Failure::Template)
    })
    .in_file(path)?;
    if content_ranges.is_none() {
        let mut contents = conversation.messages.iter().map(|message| &message.content);
        if let Some(token) = contents.find_map(|content| tokenizer.find_control_token(content)) {
            let token = token.to_owned();
            return Err(Failure::SpeltControlToken { token });
        }
    }
    let contents = content_ranges.unwrap_or_default();
    Ok(tokenizer.encode_conversation(&text, &contents, AddSpecialTokens::Prompt))
}

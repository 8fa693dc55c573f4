//! Parses server-sent events (the media type `text/event-stream` of the HTML standard). Pure: gets
//! bytes, returns items.
//!
//! The field `retry` and comments are ignored. An `id:` line without data is an item of its own,
//! because it moves the position of the stream.

/// Maximum size of one event. A larger event is an error.
const MAX_EVENT_BYTES: usize = 16 * 1024 * 1024;

/// A complete part of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) enum Item {
    /// An event.
    Event {
        /// The latest `id:` of the stream. `None` if the stream has not had an id yet.
        id: Option<String>,
        /// The field `event`, or `message` if the event has no such field.
        event_type: String,
        /// The lines of data, separated by `\n`.
        data: String,
    },
    /// An `id:` line without data.
    Position(String),
}

/// The stream contains an event that is larger than 16 MiB.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("an event is larger than {MAX_EVENT_BYTES} bytes")]
pub(in crate::cli) struct EventTooLarge;

/// Parses one stream. The parts of the stream can begin and end anywhere.
#[derive(Debug, Default)]
pub(in crate::cli) struct Parser {
    /// The bytes of the incomplete last line.
    line: Vec<u8>,
    /// Whether the previous byte was a carriage return, which has ended a line. A line feed after it
    /// belongs to the same line end.
    is_after_carriage_return: bool,
    has_read_first_line: bool,
    last_id: Option<String>,
    event_type: String,
    /// The lines of data of the incomplete event. `None` if there is no line yet.
    data: Option<String>,
    /// Whether the incomplete event has an id.
    has_id: bool,
}

impl Parser {
    /// Adds the next bytes of the stream. Returns the items that are complete now.
    pub(in crate::cli) fn push(&mut self, bytes: &[u8]) -> Result<Vec<Item>, EventTooLarge> {
        let mut items = Vec::new();
        for &byte in bytes {
            let ends_previous_line_end = byte == b'\n' && self.is_after_carriage_return;
            self.is_after_carriage_return = byte == b'\r';
            match byte {
                b'\n' if ends_previous_line_end => {}
                b'\n' | b'\r' => items.extend(self.end_line()),
                _ => {
                    if self.line.len() + self.data.as_ref().map_or(0, String::len)
                        >= MAX_EVENT_BYTES
                    {
                        return Err(EventTooLarge);
                    }
                    self.line.push(byte);
                }
            }
        }
        Ok(items)
    }

    /// Processes the complete line. Returns an item if the line ends one.
    fn end_line(&mut self) -> Option<Item> {
        let line = std::mem::take(&mut self.line);
        let mut line = line.as_slice();
        if !self.has_read_first_line {
            self.has_read_first_line = true;
            line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        }
        if line.is_empty() {
            return self.end_event();
        }
        let line = String::from_utf8_lossy(line);
        let (field, value) = line.split_once(':').unwrap_or((&line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => match &mut self.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => self.data = Some(value.to_owned()),
            },
            "event" => value.clone_into(&mut self.event_type),
            "id" if !value.contains('\0') => {
                self.last_id = Some(value.to_owned());
                self.has_id = true;
            }
            // Comments have an empty field name.
            _ => {}
        }
        None
    }

    /// Processes an empty line, which ends an event.
    fn end_event(&mut self) -> Option<Item> {
        let event_type = std::mem::take(&mut self.event_type);
        let has_id = std::mem::take(&mut self.has_id);
        if let Some(data) = self.data.take() {
            let event_type = if event_type.is_empty() {
                "message".to_owned()
            } else {
                event_type
            };
            return Some(Item::Event {
                id: self.last_id.clone(),
                event_type,
                data,
            });
        }
        if has_id {
            return self.last_id.clone().map(Item::Position);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Vec<Item> {
        Parser::default().push(text.as_bytes()).unwrap()
    }

    fn event(id: Option<&str>, event_type: &str, data: &str) -> Item {
        Item::Event {
            id: id.map(str::to_owned),
            event_type: event_type.to_owned(),
            data: data.to_owned(),
        }
    }

    const STREAM: &str = "\u{feff}id: 7\n\n: comment\n\nid: 8\nevent: connection.online\n\
                          data: {\"a\":\ndata:  \"é😀\"}\n\nretry: 5\ndata\n\nid: 9\n\n";

    fn items_of_stream() -> Vec<Item> {
        vec![
            Item::Position("7".to_owned()),
            event(Some("8"), "connection.online", "{\"a\":\n \"é😀\"}"),
            event(Some("8"), "message", ""),
            Item::Position("9".to_owned()),
        ]
    }

    #[test]
    fn events_positions_and_comments_are_parsed() {
        assert_eq!(parse(STREAM), items_of_stream());
    }

    #[test]
    fn the_result_does_not_depend_on_line_ends() {
        for line_end in ["\r\n", "\r"] {
            assert_eq!(parse(&STREAM.replace('\n', line_end)), items_of_stream());
        }
    }

    #[test]
    fn the_result_does_not_depend_on_the_boundaries_of_the_parts() {
        for text in [STREAM.to_owned(), STREAM.replace('\n', "\r\n")] {
            let bytes = text.as_bytes();
            for middle in 0..=bytes.len() {
                let mut parser = Parser::default();
                let mut items = parser.push(&bytes[..middle]).unwrap();
                items.extend(parser.push(&bytes[middle..]).unwrap());
                assert_eq!(items, items_of_stream(), "{middle}");
            }
            let mut parser = Parser::default();
            let single_bytes = bytes.iter().flat_map(|byte| parser.push(&[*byte]).unwrap());
            assert_eq!(single_bytes.collect::<Vec<_>>(), items_of_stream());
        }
    }

    #[test]
    fn an_incomplete_event_is_not_returned() {
        assert_eq!(parse("id: 1\ndata: x\n"), []);
        assert_eq!(parse("data: x\n\ndata: y"), [event(None, "message", "x")]);
    }

    #[test]
    fn unknown_fields_and_ids_with_nul_are_ignored() {
        let items = parse("id: 1\n\nid: 2\0\nother: x\n data: y\ndata: z\n\n");
        let expected = [
            Item::Position("1".to_owned()),
            event(Some("1"), "message", "z"),
        ];
        assert_eq!(items, expected);
    }

    #[test]
    fn the_type_of_an_event_without_data_does_not_apply_to_the_next_event() {
        let items = parse("event: a\n\ndata: x\n\n");
        assert_eq!(items, [event(None, "message", "x")]);
    }

    #[test]
    fn an_event_that_is_too_large_is_an_error() {
        let mut parser = Parser::default();
        parser.push(b"data: ").unwrap();
        let part = vec![b'x'; MAX_EVENT_BYTES / 2];
        parser.push(&part).unwrap();
        parser.push(b"\ndata: ").unwrap();
        assert_eq!(parser.push(&part), Err(EventTooLarge));
    }
}

//! Decodes the frames from a WebSocket client.

use std::io::Cursor;

use tungstenite::protocol::frame::FrameHeader;
use tungstenite::protocol::frame::coding::{Control, Data, OpCode};

/// Maximum length of a frame header.
const MAX_HEADER_BYTES: usize = 14;
/// Maximum length of the payload of a control frame.
const MAX_CONTROL_BYTES: u64 = 125;

/// Status codes of a close frame.
pub(super) const CLOSE_NORMAL: u16 = 1000;
const CLOSE_PROTOCOL_ERROR: u16 = 1002;
const CLOSE_UNSUPPORTED_DATA: u16 = 1003;

/// The client violated the WebSocket protocol, or sent text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameError {
    /// Status code of the close frame to the client.
    pub close_code: u16,
}

const PROTOCOL_ERROR: FrameError = FrameError {
    close_code: CLOSE_PROTOCOL_ERROR,
};

/// Decodes frames. The payload of a data frame can be of any length, because it is not buffered.
#[derive(Debug, Default)]
pub(super) struct FrameDecoder {
    header: [u8; MAX_HEADER_BYTES],
    header_len: usize,
    /// The frame whose header is complete.
    frame: Option<Frame>,
    /// Payload of the current control frame.
    control_payload: Vec<u8>,
    /// Whether the current message continues in the next data frame.
    is_message_incomplete: bool,
    /// Payload of the latest ping that was not answered.
    ping: Option<Vec<u8>>,
    is_closed: bool,
}

#[derive(Debug)]
struct Frame {
    opcode: OpCode,
    remaining: u64,
    mask: [u8; 4],
}

impl FrameDecoder {
    /// Decodes bytes from the network. Moves the payload of data frames to the start of `bytes`, and
    /// returns its length.
    pub fn decode(&mut self, bytes: &mut [u8]) -> Result<usize, FrameError> {
        let (mut position, mut payload_len) = (0, 0);
        while position < bytes.len() && !self.is_closed {
            let Some(frame) = &mut self.frame else {
                self.add_header_byte(bytes[position])?;
                position += 1;
                continue;
            };
            let available = (bytes.len() - position) as u64;
            // The result is not larger than `available`, which is a `usize`.
            #[expect(clippy::cast_possible_truncation, reason = "see the line above")]
            let count = frame.remaining.min(available) as usize;
            let part = position..position + count;
            frame.unmask(&mut bytes[part.clone()]);
            frame.remaining -= count as u64;
            position += count;
            if matches!(frame.opcode, OpCode::Data(_)) {
                bytes.copy_within(part, payload_len);
                payload_len += count;
            } else {
                self.control_payload.extend_from_slice(&bytes[part]);
            }
            self.finish_frame_if_complete();
        }
        Ok(payload_len)
    }

    /// Returns the payload of the latest ping, if it was not answered.
    pub fn take_ping(&mut self) -> Option<Vec<u8>> {
        self.ping.take()
    }

    /// Returns whether the client has sent a close frame.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    fn add_header_byte(&mut self, byte: u8) -> Result<(), FrameError> {
        self.header[self.header_len] = byte;
        self.header_len += 1;
        let mut cursor = Cursor::new(&self.header[..self.header_len]);
        let parsed = FrameHeader::parse(&mut cursor).map_err(|_| PROTOCOL_ERROR)?;
        let Some((header, payload_len)) = parsed else {
            return Ok(());
        };
        self.header_len = 0;
        self.start_frame(&header, payload_len)
    }

    fn start_frame(&mut self, header: &FrameHeader, payload_len: u64) -> Result<(), FrameError> {
        // A client must mask its frames. No extension is negotiated that uses the reserved bits.
        let (Some(mask), false) = (header.mask, header.rsv1 || header.rsv2 || header.rsv3) else {
            return Err(PROTOCOL_ERROR);
        };
        match header.opcode {
            OpCode::Data(Data::Text) => {
                return Err(FrameError {
                    close_code: CLOSE_UNSUPPORTED_DATA,
                });
            }
            OpCode::Data(data) => {
                // All frames of a message except the first one are continuation frames.
                if (data == Data::Continue) != self.is_message_incomplete {
                    return Err(PROTOCOL_ERROR);
                }
                self.is_message_incomplete = !header.is_final;
            }
            OpCode::Control(_) => {
                if !header.is_final || payload_len > MAX_CONTROL_BYTES {
                    return Err(PROTOCOL_ERROR);
                }
            }
        }
        self.frame = Some(Frame {
            opcode: header.opcode,
            remaining: payload_len,
            mask,
        });
        self.finish_frame_if_complete();
        Ok(())
    }

    fn finish_frame_if_complete(&mut self) {
        let Some(frame) = self.frame.take_if(|frame| frame.remaining == 0) else {
            return;
        };
        let control_payload = std::mem::take(&mut self.control_payload);
        match frame.opcode {
            OpCode::Control(Control::Ping) => self.ping = Some(control_payload),
            OpCode::Control(Control::Close) => self.is_closed = true,
            OpCode::Control(_) | OpCode::Data(_) => {}
        }
    }
}

impl Frame {
    fn unmask(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(self.mask.len()) {
            for (byte, mask) in chunk.iter_mut().zip(self.mask) {
                *byte ^= mask;
            }
        }
        // The mask of the next bytes begins where the mask of these bytes ended.
        let mask_len = self.mask.len();
        self.mask.rotate_left(bytes.len() % mask_len);
    }
}

#[cfg(test)]
mod tests {
    use super::super::stream::tests::{
        BINARY, CLOSE, CONTINUE, FINAL, PING, PONG, TEXT, client_frame,
    };
    use super::*;

    fn decode(decoder: &mut FrameDecoder, bytes: &[u8]) -> Result<Vec<u8>, FrameError> {
        let mut bytes = bytes.to_vec();
        let payload_len = decoder.decode(&mut bytes)?;
        bytes.truncate(payload_len);
        Ok(bytes)
    }

    #[test]
    fn frames_are_decoded_from_parts_of_any_length() {
        let large: Vec<u8> = (0..=255).cycle().take(70_000).collect();
        let medium = vec![b'm'; 300];
        let mut bytes = client_frame(FINAL | BINARY, b"small");
        bytes.extend(client_frame(FINAL | BINARY, &medium));
        bytes.extend(client_frame(FINAL | BINARY, b""));
        bytes.extend(client_frame(FINAL | BINARY, &large));
        let expected = [b"small", &medium[..], &large].concat();
        for part_len in [1, 2, 3, 7, 14, 1000, bytes.len()] {
            let mut decoder = FrameDecoder::default();
            let decoded: Vec<u8> = bytes
                .chunks(part_len)
                .flat_map(|part| decode(&mut decoder, part).unwrap())
                .collect();
            assert!(decoded == expected, "parts of {part_len} bytes");
        }
    }

    #[test]
    fn control_frames_may_occur_between_the_frames_of_a_message() {
        let mut decoder = FrameDecoder::default();
        let mut bytes = client_frame(BINARY, b"first,");
        bytes.extend(client_frame(FINAL | PING, b"old"));
        bytes.extend(client_frame(FINAL | PING, b"new"));
        bytes.extend(client_frame(FINAL | PONG, b"ignored"));
        bytes.extend(client_frame(CONTINUE, b"second,"));
        bytes.extend(client_frame(FINAL | CONTINUE, b"third"));
        bytes.extend(client_frame(FINAL | BINARY, b".next"));
        assert_eq!(
            decode(&mut decoder, &bytes).unwrap(),
            b"first,second,third.next"
        );
        assert_eq!(decoder.take_ping().unwrap(), b"new");
        assert_eq!(decoder.take_ping(), None);
    }

    #[test]
    fn bytes_after_a_close_frame_are_ignored() {
        let mut decoder = FrameDecoder::default();
        let mut bytes = client_frame(FINAL | BINARY, b"last");
        bytes.extend(client_frame(FINAL | CLOSE, &CLOSE_NORMAL.to_be_bytes()));
        bytes.extend(client_frame(FINAL | BINARY, b"too late"));
        assert_eq!(decode(&mut decoder, &bytes).unwrap(), b"last");
        assert!(decoder.is_closed());
    }

    #[test]
    fn text_and_violations_of_the_protocol_are_errors() {
        let unmasked = vec![FINAL | BINARY, 1, b'x'];
        for (bytes, close_code) in [
            (client_frame(FINAL | TEXT, b"text"), 1003),
            (unmasked, 1002),
            (client_frame(FINAL | 0x40 | BINARY, b"compressed"), 1002),
            (client_frame(FINAL | CONTINUE, b"no first frame"), 1002),
            (client_frame(PING, b"fragmented"), 1002),
            (client_frame(FINAL | PING, &[0; 126]), 1002),
            (client_frame(FINAL | 3, b"reserved opcode"), 1002),
            (
                [client_frame(BINARY, b"x"), client_frame(BINARY, b"x")].concat(),
                1002,
            ),
        ] {
            let error = decode(&mut FrameDecoder::default(), &bytes).unwrap_err();
            assert_eq!(error.close_code, close_code, "{bytes:?}");
        }
    }
}

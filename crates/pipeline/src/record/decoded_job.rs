//! A job whose messages are decoded. Each message is decoded and counted once, even if the recorder
//! retries the batch.

use tokio::sync::oneshot;

use super::batch::to_presence_signal;
use super::presence::PresenceSignal;
use super::writer::Job;
use super::{RecorderInput, metrics};
use domain::{ClientId, Timestamp};
use protocol::{ClientMessage, ClientTopic, HandshakeError, InboundMessage, Rejection};
use service::ByteReservation;
use store::{DeadLetter, PartitionLease};

/// The decoded messages of a job.
pub(super) struct DecodedJob {
    /// The presence signals, in the order of the inputs.
    pub signals: Vec<(ClientId, PresenceSignal)>,
    /// The messages that cannot be processed.
    pub dead_letters: Vec<DeadLetter>,
    /// Handshake errors to publish after the commit, each with the topic of the invalid handshake.
    pub handshake_errors: Vec<(ClientTopic, HandshakeError)>,
    /// The online messages, each with its index in the batch. If the database rejects the row of an
    /// online message, the message becomes a dead letter. The payloads of all other messages are
    /// freed.
    online_messages: Vec<(usize, InboundMessage)>,
    /// Receive times of all messages.
    pub receive_times: Vec<Timestamp>,
    pub input_count: usize,
    pub size_bytes: usize,
    pub lease: Option<PartitionLease>,
    pub receipt_sender: oneshot::Sender<()>,
    /// Reserves the memory of the inputs until the job is durable.
    _reservations: Vec<ByteReservation>,
}

impl DecodedJob {
    /// Decodes the messages of a job. Messages that cannot be processed become dead letters. The
    /// inputs have the indexes from `first_index` in the batch.
    pub fn new(job: Job, first_index: usize, now: Timestamp) -> Self {
        let input_count = job.inputs.len();
        let (inputs, reservations): (Vec<_>, Vec<_>) = job
            .inputs
            .into_iter()
            .map(|prepared| ((prepared.input, prepared.decoded), prepared.reservation))
            .unzip();
        let mut decoded_job = Self {
            signals: Vec::with_capacity(input_count),
            dead_letters: Vec::new(),
            handshake_errors: Vec::new(),
            online_messages: Vec::new(),
            receive_times: Vec::with_capacity(input_count),
            input_count,
            size_bytes: job.size_bytes,
            lease: job.lease,
            receipt_sender: job.receipt_sender,
            _reservations: reservations,
        };
        // Each input is dropped after it was decoded, so that its payload is freed.
        for (input_index, (input, decoded)) in (first_index..).zip(inputs) {
            decoded_job.add_input(input_index, &input, decoded, now);
        }
        decoded_job
    }

    /// Returns the online message with this index in the batch.
    pub fn online_message(&self, input_index: usize) -> Option<&InboundMessage> {
        self.online_messages
            .iter()
            .find(|(index, _)| *index == input_index)
            .map(|(_, message)| message)
    }

    fn add_input(
        &mut self,
        input_index: usize,
        input: &RecorderInput,
        decoded: Option<Result<ClientMessage, Rejection>>,
        now: Timestamp,
    ) {
        if let Some(message) = input.inbound_message() {
            self.receive_times.push(message.received_at);
        }
        match input {
            RecorderInput::ConnectionClosed { client } => {
                let signal = PresenceSignal::ConnectionClosed { closed_at: now };
                self.signals.push((client.clone(), signal));
            }
            RecorderInput::UnknownTopic { message } => {
                self.add_dead_letter(None, message, &Rejection::unknown_topic());
            }
            RecorderInput::Message { topic, message, .. } => {
                let decoded = decoded.unwrap_or_else(|| protocol::decode(topic.channel, message));
                self.add_message(input_index, input, topic, message, decoded);
            }
        }
    }

    fn add_message(
        &mut self,
        input_index: usize,
        input: &RecorderInput,
        topic: &ClientTopic,
        message: &InboundMessage,
        decoded: Result<ClientMessage, Rejection>,
    ) {
        let client = &topic.client;
        match decoded {
            Ok(ClientMessage::InvalidHandshake(error)) => {
                self.add_dead_letter(Some(client), message, &error.rejection);
                self.handshake_errors.push((topic.clone(), error));
            }
            Ok(decoded_message) => {
                match to_presence_signal(input_index, input, topic, message, decoded_message) {
                    Some(signal) => {
                        if matches!(signal, PresenceSignal::Online { .. }) {
                            self.online_messages.push((input_index, message.clone()));
                        }
                        self.signals.push((client.clone(), signal));
                    }
                    None => metrics::count_ignored_message(client, "not_presence"),
                }
            }
            Err(rejection) => self.add_dead_letter(Some(client), message, &rejection),
        }
    }

    fn add_dead_letter(
        &mut self,
        client: Option<&ClientId>,
        message: &InboundMessage,
        rejection: &Rejection,
    ) {
        metrics::count_dead_letter(&message.topic, rejection);
        let dead_letter = DeadLetter::new(client.cloned(), message, rejection);
        self.dead_letters.push(dead_letter);
    }
}

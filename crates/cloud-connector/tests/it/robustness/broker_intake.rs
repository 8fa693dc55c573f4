//! Last wills, unfinished packets and overload of the embedded broker.

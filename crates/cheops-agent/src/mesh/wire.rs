//! One HTTP/1 connection to the application's instance, and who moves its bytes.
//!
//! The request that a connection carries moves them itself, in the task that serves its client. With a
//! task for each connection, the two would have to wake each other twice for each request.
//!
//! What must stay true:
//! - whatever comes over the connection is asked for after the connection was moved, in the same poll,
//!   and so needs no waker of its own;
//! - a client that does not read its answer does not hold up its own body: if the answer begins before
//!   all of that was sent, a task moves the bytes from then on;
//! - a connection that may change what it speaks is moved by a task.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    task::{Context, Poll, Waker, ready},
};

use bytes::Bytes;
use hyper::{
    Request, Response,
    body::{Body as _, Frame, Incoming},
    client::conn::{TrySendError, http1},
    header::UPGRADE,
};
use hyper_util::rt::TokioIo;
use tokio::{task::unconstrained, time::Instant};

use super::{
    body::{Body, BodyError, Timed, Waiting},
    clock::Alarm,
};
use crate::{config::Limits, socket::Socket};

/// What came of a request: nothing, if that took too long.
pub(super) type Asked = Option<Result<Response<Incoming>, TrySendError<Request<Timed>>>>;

/// A connection.
pub(super) struct Wire {
    sender: http1::SendRequest<Timed>,
    /// Moves its bytes, unless a task does.
    moving: Option<http1::Connection<TokioIo<Socket>, Timed>>,
    /// One for all of its requests.
    alarm: Alarm,
}

impl Wire {
    pub(super) async fn new(socket: Socket) -> hyper::Result<Self> {
        let (sender, moving) = http1::Builder::new().handshake(TokioIo::new(socket)).await?;
        Ok(Self { sender, moving: Some(moving), alarm: Alarm::default() })
    }

    /// Whether it can carry a request. Nobody waits for it.
    pub(super) fn is_free(&mut self) -> bool {
        self.advance(&mut Context::from_waker(Waker::noop()));
        self.moving.is_some() && self.sender.is_ready()
    }

    /// Whether it can carry another one, as far as is known.
    pub(super) fn can_be_kept(&self) -> bool {
        self.moving.is_some() && !self.sender.is_closed()
    }

    /// Moves what there is to move, unless a task does.
    fn advance(&mut self, cx: &mut Context<'_>) {
        let Some(moving) = &mut self.moving else { return };
        if Pin::new(moving).poll(cx).is_ready() {
            // How it ended is told to whoever uses it.
            self.moving = None;
        }
    }

    /// Lets a task move the bytes from now on.
    fn let_go(&mut self) {
        if let Some(moving) = self.moving.take() {
            tokio::spawn(async move { moving.with_upgrades().await });
        }
    }

    /// Sends a request, and waits for the head of the answer, but not for too long after all of the
    /// request's body was sent, nor for an instance that does not take it.
    pub(super) async fn ask(&mut self, request: Request<Timed>, limits: Limits) -> Asked {
        let waiting = request.body().waiting();
        if request.headers().contains_key(UPGRADE) {
            self.let_go();
            return waiting.within(limits, self.sender.try_send_request(request)).await;
        }
        let asked = self.ask_here(request, &waiting, limits).await;
        if !waiting.is_over() {
            self.let_go();
        }
        asked
    }

    async fn ask_here(
        &mut self,
        request: Request<Timed>,
        waiting: &Waiting,
        limits: Limits,
    ) -> Asked {
        // Out of budget it would wait to be woken, and nobody would wake it.
        let mut answer = pin!(unconstrained(self.sender.try_send_request(request)));
        let (mut over, mut taken) = (waiting.is_over(), 0);
        self.alarm.set(Instant::now() + if over { limits.answer } else { limits.idle });
        let mut sent = false;
        poll_fn(|cx| {
            // An answer that is there was mostly what woke us. Nobody is to be woken by it once more.
            if sent {
                self.advance(&mut Context::from_waker(Waker::noop()));
                if let Poll::Ready(answer) = answer.as_mut().poll(&mut self.still(cx)) {
                    return Poll::Ready(Some(answer));
                }
            }
            sent = true;
            self.advance(cx);
            if let Poll::Ready(answer) = answer.as_mut().poll(&mut self.still(cx)) {
                return Poll::Ready(Some(answer));
            }
            if !over && waiting.is_over() {
                self.alarm.set(Instant::now() + limits.answer);
                over = true;
            }
            loop {
                ready!(self.alarm.poll(cx));
                if over || std::mem::replace(&mut taken, waiting.taken()) == waiting.taken() {
                    return Poll::Ready(None);
                }
                self.alarm.set(Instant::now() + limits.idle);
            }
        })
        .await
    }

    /// The next part of an answer's body.
    pub(super) fn poll_frame(
        &mut self,
        body: &mut Body,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut body = Pin::new(body);
        // What has come already does not need to be moved.
        let said = body.as_mut().poll_frame(&mut self.still(cx));
        if said.is_ready() || self.moving.is_none() {
            return said;
        }
        self.advance(cx);
        body.poll_frame(&mut self.still(cx))
    }

    /// A context for what comes by being moved: if that is done here, nobody needs to be woken.
    fn still<'a>(&self, cx: &Context<'a>) -> Context<'a> {
        Context::from_waker(if self.moving.is_some() { Waker::noop() } else { cx.waker() })
    }
}

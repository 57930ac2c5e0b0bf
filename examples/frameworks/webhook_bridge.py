"""A webhook: a bridge from RabbitMQ calls an HTTP service for each message, with the `txcore-id` as idempotency key.

pip install aio-pika httpx
BROKER=amqp://guest:guest@127.0.0.1/ TOPIC=orders.created TARGET=http://127.0.0.1:8000/orders python webhook_bridge.py
"""

import asyncio
import os

import aio_pika
import httpx

PAUSE_S = float(os.environ.get("PAUSE_S", "1"))


async def deliver(client: httpx.AsyncClient, url: str, message: aio_pika.abc.AbstractIncomingMessage) -> None:
    """Call until the service has answered 2xx; the key is the same each time."""
    headers = {"idempotency-key": str(message.headers["txcore-id"])}
    while True:
        try:
            answer = await client.post(url, content=message.body, headers=headers)
            answer.raise_for_status()
        except httpx.HTTPError:  # 4xx too: park it after some tries, as your service needs it
            await asyncio.sleep(PAUSE_S)
        else:
            await message.ack()
            return


async def main() -> None:
    """Run until the process ends, in any way."""
    broker = await aio_pika.connect(os.environ.get("BROKER", "amqp://guest:guest@127.0.0.1/"))
    async with broker, broker.channel() as channel, httpx.AsyncClient() as client:
        await channel.set_qos(prefetch_count=1)
        queue = await channel.get_queue(os.environ.get("TOPIC", "orders.created"))
        print("ready", flush=True)
        async with queue.iterator() as messages:
            async for message in messages:
                await deliver(client, os.environ["TARGET"], message)


if __name__ == "__main__":
    asyncio.run(main())

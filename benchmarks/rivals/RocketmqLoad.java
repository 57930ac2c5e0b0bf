import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.BitSet;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Drives RocketMQ for the comparison and prints one line per figure: measure, load, unit, value, with tabs between.
 *
 * The producers are set up as in RocketMQ's own example of transactional messages: its thread pool for checks, its
 * defaults otherwise. A transaction counts as reported when sendMessageInTransaction returned COMMIT_MESSAGE; its END
 * request is one-way, so that this is no acknowledgement of the commit.
 */
public class RocketmqLoad {
    static final int SIZE = 300;
    static final int[] THREADS = {1, 16, 64, 256};
    static String servers;

    public static void main(String[] words) throws Exception {
        servers = words[0];
        double seconds = Double.parseDouble(words[2]);
        int rate = Integer.parseInt(words[3]);
        if (words[1].equals("rates")) {
            rates(seconds);
            visible(10, "idle, 10/s", 1, seconds);
            visible(rate, rate + "/s", 16, seconds);
        } else if (words[1].equals("recovery")) {
            recovery((int) Double.parseDouble(words[4]));
        } else {
            overload(Double.parseDouble(words[4]));
        }
        System.exit(0);
    }

    static void print(String measure, String load, String unit, double value) {
        System.out.println(measure + "\t" + load + "\t" + unit + "\t" + value);
    }

    /** What the caller's transaction says: the argument is null for UNKNOWN. Checks are answered with COMMIT. */
    static final class Committing implements TransactionListener {
        final Map<Integer, Long> committed = new ConcurrentHashMap<>();
        final boolean isTimed;

        Committing(boolean isTimed) {
            this.isTimed = isTimed;
        }

        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            if (argument == null) {
                return LocalTransactionState.UNKNOW; // codespell:ignore
            }
            if (isTimed) {
                committed.put((Integer) argument, System.nanoTime());
            }
            return LocalTransactionState.COMMIT_MESSAGE;
        }

        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            return LocalTransactionState.COMMIT_MESSAGE;
        }
    }

    static TransactionMQProducer transactional(String topic, TransactionListener listener) throws Exception {
        // Given the topic it makes itself known to the broker at once, so that it is asked at checks.
        TransactionMQProducer producer = new TransactionMQProducer(topic, Collections.singletonList(topic));
        producer.setInstanceName(topic + "-" + System.nanoTime());
        ExecutorService pool =
                new ThreadPoolExecutor(2, 5, 100, TimeUnit.SECONDS, new ArrayBlockingQueue<>(2000));
        producer.setExecutorService(pool);
        producer.setNamesrvAddr(servers);
        producer.setTransactionListener(listener);
        producer.start();
        return producer;
    }

    static void create(DefaultMQProducer producer, String topic) throws Exception {
        for (int each = 0; ; each++) {
            try {
                producer.createTopic("TBW102", topic, 8, new HashMap<>());
                producer.send(message(topic, 0));
                return;
            } catch (Exception error) {
                if (each == 60) {
                    throw error;
                }
                Thread.sleep(500);
            }
        }
    }

    static Message message(String topic, int number) {
        byte[] body = String.format("%020d", number).getBytes(StandardCharsets.US_ASCII);
        int length = body.length;
        body = Arrays.copyOf(body, SIZE);
        Arrays.fill(body, length, SIZE, (byte) 'x');
        return new Message(topic, body);
    }

    static int number(MessageExt message) {
        return Integer.parseInt(new String(message.getBody(), 0, 20, StandardCharsets.US_ASCII));
    }

    interface Call {
        boolean send(int number) throws Exception;
    }

    /** Calls from so many threads until the time is up; returns how many calls were reported as done, and when. */
    static double load(int threads, double seconds, AtomicInteger numbers, BitSet reported, Call call)
            throws Exception {
        CountDownLatch ended = new CountDownLatch(threads);
        AtomicInteger count = new AtomicInteger();
        long begin = System.nanoTime();
        long deadline = begin + (long) (seconds * 1e9);
        for (int each = 0; each < threads; each++) {
            new Thread(() -> {
                while (System.nanoTime() < deadline) {
                    int number = numbers.incrementAndGet();
                    try {
                        if (call.send(number)) {
                            count.incrementAndGet();
                            if (reported != null) {
                                synchronized (reported) {
                                    reported.set(number);
                                }
                            }
                        }
                    } catch (Exception error) {
                        // The broker refused it or did not answer: not reported as done.
                    }
                }
                ended.countDown();
            }).start();
        }
        ended.await();
        return count.get() / ((System.nanoTime() - begin) / 1e9);
    }

    static boolean commit(TransactionMQProducer producer, String topic, int number) throws Exception {
        return producer.sendMessageInTransaction(message(topic, number), number).getLocalTransactionState()
                == LocalTransactionState.COMMIT_MESSAGE;
    }

    static void rates(double seconds) throws Exception {
        DefaultMQProducer plain = new DefaultMQProducer("plain");
        plain.setNamesrvAddr(servers);
        plain.start();
        create(plain, "rates");
        TransactionMQProducer producer = transactional("rates", new Committing(false));
        AtomicInteger numbers = new AtomicInteger();
        Call send = number -> plain.send(message("rates", number)).getSendStatus() == SendStatus.SEND_OK;
        Call transact = number -> commit(producer, "rates", number);
        load(16, 3, numbers, null, send);
        load(16, 3, numbers, null, transact);
        for (int threads : THREADS) {
            String words = threads + (threads == 1 ? " thread" : " threads");
            print("plain send", words, "/s", load(threads, seconds, numbers, null, send));
            print("transactional", words, "/s", load(threads, seconds, numbers, null, transact));
        }
        plain.shutdown();
        producer.shutdown();
    }

    /** What a push consumer has seen of one topic. */
    static final class Seen {
        final Map<Integer, Long> firstAt = new ConcurrentHashMap<>();
        final AtomicInteger duplicates = new AtomicInteger();
        final DefaultMQPushConsumer consumer;
        volatile long lastAt = System.nanoTime();

        Seen(String topic) throws Exception {
            consumer = new DefaultMQPushConsumer("seen-" + topic);
            consumer.setNamesrvAddr(servers);
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                long now = System.nanoTime();
                for (MessageExt each : messages) {
                    if (firstAt.putIfAbsent(number(each), now) != null) {
                        duplicates.incrementAndGet();
                    }
                }
                lastAt = now;
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
        }

        /** Waits until so many were seen, or nothing more came for a while. */
        void await(int count, double quietSeconds, double leastSeconds) throws Exception {
            long begin = System.nanoTime();
            while (firstAt.size() < count
                    && (System.nanoTime() - lastAt < quietSeconds * 1e9
                            || System.nanoTime() - begin < leastSeconds * 1e9)) {
                Thread.sleep(5);
            }
        }
    }

    static void visible(int rate, String words, int threads, double seconds) throws Exception {
        String topic = "visible" + rate;
        Committing listener = new Committing(true);
        TransactionMQProducer producer = transactional(topic, listener);
        create(producer, topic);
        Seen seen = new Seen(topic);
        seen.await(1, 20, 20);
        AtomicInteger numbers = new AtomicInteger();
        long begin = System.nanoTime();
        long pause = 1_000_000_000L * threads / rate;
        Map<Long, Long> due = new ConcurrentHashMap<>();
        load(threads, Math.max(seconds, 3), numbers, null, number -> {
            long own = Thread.currentThread().getId();
            long at = due.merge(own, begin, (old, first) -> old + pause);
            long wait = at - System.nanoTime();
            if (wait > 0) {
                TimeUnit.NANOSECONDS.sleep(wait);
            }
            return commit(producer, topic, number);
        });
        seen.await(listener.committed.size() + 1, 10, 10);
        double[] latencies = listener.committed.keySet().stream().filter(seen.firstAt::containsKey)
                .mapToDouble(number -> (seen.firstAt.get(number) - listener.committed.get(number)) / 1e6)
                .sorted().toArray();
        for (int percent : new int[] {50, 99}) {
            int rank = Math.max(1, (latencies.length * percent + 99) / 100);
            print("commit to visible p" + percent, words, "ms", latencies[rank - 1]);
        }
        seen.consumer.shutdown();
        producer.shutdown();
    }

    /** Leaves so many halves UNKNOWN, ends their producer, starts another and waits until all were delivered. */
    static void recovery(int count) throws Exception {
        TransactionMQProducer first = transactional("recovery", new Committing(false));
        create(first, "recovery");
        Seen seen = new Seen("recovery");
        seen.await(1, 20, 20);
        AtomicInteger stored = new AtomicInteger();
        ExecutorService senders = Executors.newFixedThreadPool(64);
        for (int each = 1; each <= count; each++) {
            Message message = message("recovery", each);
            senders.submit(() -> {
                first.sendMessageInTransaction(message, null);
                return stored.incrementAndGet();
            });
        }
        senders.shutdown();
        if (!senders.awaitTermination(120, TimeUnit.SECONDS) || stored.get() < count) {
            throw new IllegalStateException("only " + stored.get() + " halves were stored");
        }
        first.shutdown();
        long begin = System.nanoTime();
        int before = seen.firstAt.size();
        TransactionMQProducer second = transactional("recovery", new Committing(false));
        seen.await(count + 1, 90, 90);
        String words = "of " + String.format("%,d", count);
        print("recovery", words, "s", (seen.lastAt - begin) / 1e9);
        print("recovery: not delivered", words, "", count + 1 - seen.firstAt.size());
        Thread.sleep(5_000);
        print("recovery: duplicates", words, "", seen.duplicates.get());
        if (before > 1) {
            System.err.println((before - 1) + " were delivered before the second producer was there");
        }
        second.shutdown();
        seen.consumer.shutdown();
    }

    static void overload(double seconds) throws Exception {
        TransactionMQProducer producer = transactional("overload", new Committing(false));
        create(producer, "overload");
        AtomicInteger numbers = new AtomicInteger();
        BitSet reported = new BitSet();
        load(64, seconds, numbers, reported, number -> commit(producer, "overload", number));
        producer.shutdown();
        Seen seen = new Seen("overload");
        print("overload: reported committed", "64 threads", "", reported.cardinality());
        BitSet missing = (BitSet) reported.clone();
        for (int grace : new int[] {10, 60}) {
            // While it still reads what is there, the consumer is given more time.
            seen.await(reported.cardinality() + 1, 3, grace == 10 ? 10 : 50);
            seen.firstAt.keySet().forEach(missing::clear);
            print("overload: missing after " + grace + " s", "64 threads", "", missing.cardinality());
        }
        seen.consumer.shutdown();
    }
}
